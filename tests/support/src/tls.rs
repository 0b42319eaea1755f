//! TLS in front of a server that is built without it.

use std::process::Command;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tower_sliding_window::RedisServers;

/// A certificate for 127.0.0.1, and the authority that has signed it.
pub struct Certificates {
    certificate: Vec<u8>,
    key: Vec<u8>,
    pub authority: Vec<u8>,
}

impl Certificates {
    /// Makes them with `openssl`.
    pub fn make() -> Self {
        let files = tempfile::tempdir().unwrap();
        let openssl = |arguments: &str| {
            let mut command = Command::new("openssl");
            command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
            let output = command.args(arguments.split(' ')).current_dir(files.path()).output();
            let output = output.expect("openssl is on PATH");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        openssl("-subj /CN=authority -keyout authority.key -out authority.crt");
        openssl(
            "-subj /CN=server -keyout server.key -out server.crt -CA authority.crt -CAkey \
             authority.key -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE",
        );
        let [certificate, key, authority] = ["server.crt", "server.key", "authority.crt"]
            .map(|name| std::fs::read(files.path().join(name)).unwrap());
        Self { certificate, key, authority }
    }

    /// Has clients of these servers trust the authority, and show the certificate.
    pub fn of_clients(&self, servers: RedisServers) -> RedisServers {
        let Self { certificate, key, authority } = self;
        servers
            .root_certificate(authority.clone())
            .client_certificate(certificate.clone(), key.clone())
    }
}

/// Accepts TLS connections on a free port, from clients with a certificate of the authority, and
/// passes on what they send to the server at this loopback port. Returns the port.
pub async fn in_front_of(server_port: u16, files: &Certificates) -> u16 {
    let Certificates { certificate, key, authority } = files;
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority).unwrap()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate).unwrap()],
            PrivateKeyDer::from_pem_slice(key).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = TcpStream::connect(("127.0.0.1", server_port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}
