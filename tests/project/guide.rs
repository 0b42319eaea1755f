//! The guide lists all its pages, and its links lead somewhere.

#[test]
fn every_page_is_in_the_guide() {
    let guide = include_str!("../../src/docs.rs");
    let folder = crate::root().join("src/docs");
    let lists = guide.split("pages!(").skip(1).map(|list| list.split(')').next().unwrap());
    let pages: Vec<_> = lists.flat_map(|list| list.split([',', '\n'])).map(str::trim).collect();
    for page in crate::files(&folder, "md") {
        let name = page.file_stem().unwrap().to_str().unwrap();
        assert!(pages.contains(&name), "{name} is no module of the guide");
    }
}

#[test]
fn links_into_the_repository_lead_somewhere() {
    let files = ["md", "rs"].map(|extension| crate::files(&crate::root().join("src"), extension));
    for file in files.iter().flatten() {
        let text = std::fs::read_to_string(file).unwrap();
        for link in text.split(env!("CARGO_PKG_REPOSITORY")).skip(1) {
            let path = link.split(['\n', ')', '>']).next().unwrap();
            let path = ["/blob/main/", "/tree/main/"].iter().find_map(|it| path.strip_prefix(it));
            let exists = path.is_some_and(|path| crate::root().join(path).exists());
            assert!(exists, "{} links to {path:?}, which is not there", file.display());
        }
    }
}
