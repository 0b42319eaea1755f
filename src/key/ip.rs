use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::request::Parts;
use ipnet::IpNet;

use super::untrusted::UntrustedPeers;
use super::{Key, KeyError, KeyExtractor};
use crate::error::or_panic;

/// Takes the key from the address of the connection's peer.
///
/// The server has to insert the address into the request's extensions. The first of these counts:
///
/// 1. with the feature `axum`, `ConnectInfo<SocketAddr>`, which is present if the application is served with
///    `into_make_service_with_connect_info::<SocketAddr>()`, and then `MockConnectInfo<SocketAddr>`;
/// 2. with the feature `tonic`, the `TcpConnectInfo` that tonic's server inserts, with or without TLS;
/// 3. a `SocketAddr`;
/// 4. an `IpAddr`.
///
/// So a layer that reads the address elsewhere, as in the PROXY protocol, has to replace the `ConnectInfo`. A request without
/// an address is [`KeyError::NotProvided`].
///
/// The key is that of [`Key::from`]`(address)`: the text of an IPv4 address, such as `203.0.113.7`, and
/// the /64 of an IPv6 address, such as `2001:db8:0:1::/64`. The /64 is the smallest network that a
/// provider assigns to a customer. An IPv4-mapped address counts as the IPv4 address.
/// [`IpExtractor::ipv6_prefix`] and [`IpExtractor::ipv4_prefix`] choose other networks.
///
/// Behind a reverse proxy every client has the proxy's address: use [`client_ip`]. With
/// the feature `tracing` there is one warning of this mistake, as for a proxy that is not trusted.
pub fn peer_ip() -> IpExtractor {
    client_ip(TrustedProxies::default())
}

/// Takes the key from the client's address behind trusted proxies.
///
/// If the peer is a trusted proxy, `X-Forwarded-For` is read from the right. The first address that is
/// not a trusted proxy is the client: a trusted proxy has seen it as its own peer. Entries further left
/// are ignored, because the client can send them. If the peer is not a trusted proxy, it is the client,
/// and the header is ignored.
///
/// An entry is an address that [`IpAddr`] parses, an address with a port that [`SocketAddr`] parses, or
/// an IPv6 address in brackets. Any other entry that is read before the client is found, such as
/// `unknown`, is [`KeyError::Invalid`], and the response is a 400. If all entries are trusted proxies, the
/// leftmost is the client. The key of an address is that of [`peer_ip`], and the server has to provide the
/// peer's address in the same way.
///
/// A trusted proxy that sends no `X-Forwarded-For` is itself the client, so all clients share its log, and nothing warns of
/// it. nginx sends the header only with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;`. A proxy that connects
/// through a Unix socket has no address: each request is a 500.
///
/// A proxy that is missing in `proxies` is itself the client, so all clients share its log. With the
/// feature `tracing` there is one warning, if 100 of the first 1,000 requests have `X-Forwarded-For` or
/// `Forwarded` and none came from a trusted proxy. A proxy on the same host may connect as `::1`: trust
/// `127.0.0.1, ::1`.
///
/// `Forwarded` (RFC 7239) is not read. A proxy writes either this header or `X-Forwarded-For`, and
/// forwards the other one as the client sent it, so to read both would be to trust the client. Configure
/// a proxy that writes only `Forwarded` to write `X-Forwarded-For` too.
///
/// ```
/// use tower_sliding_window::key;
///
/// let client = key::client_ip("10.0.0.0/8, 192.168.1.7".parse()?);
/// # Ok::<(), key::TrustedProxiesError>(())
/// ```
pub fn client_ip(proxies: TrustedProxies) -> IpExtractor {
    IpExtractor { proxies, networks: Networks::DEFAULT, untrusted: UntrustedPeers::default() }
}

/// The extractor of [`peer_ip`] and [`client_ip`].
///
/// A provider may give a customer a larger IPv6 network than a /64: a /56 or a /48 has 256 or 65,536 of
/// them, each with a log of its own. A shorter prefix counts the whole network as one key. It also counts
/// customers together if their provider gives them less. The guide has an
/// [example](crate::docs::configuration#networks-of-addresses).
#[derive(Clone, Debug)]
#[must_use]
pub struct IpExtractor {
    proxies: TrustedProxies,
    networks: Networks,
    untrusted: UntrustedPeers,
}

impl IpExtractor {
    /// Sets the length of the network of an IPv6 address, from 1 to 128. Defaults to 64.
    ///
    /// # Panics
    ///
    /// Where [`IpExtractor::try_ipv6_prefix`] returns an error.
    #[track_caller]
    pub fn ipv6_prefix(self, length: u8) -> Self {
        or_panic(self.try_ipv6_prefix(length))
    }

    /// Sets the length as [`IpExtractor::ipv6_prefix`] does, or returns an error.
    ///
    /// # Errors
    ///
    /// [`PrefixLengthError`] if the length is 0 or above 128.
    pub fn try_ipv6_prefix(mut self, length: u8) -> Result<Self, PrefixLengthError> {
        self.networks.ipv6 = prefix(6, length, IPV6_BITS)?;
        Ok(self)
    }

    /// Sets the length of the network of an IPv4 address, from 1 to 32. Defaults to 32. It also applies
    /// to IPv4-mapped addresses, such as `::ffff:203.0.113.7`.
    ///
    /// # Panics
    ///
    /// Where [`IpExtractor::try_ipv4_prefix`] returns an error.
    #[track_caller]
    pub fn ipv4_prefix(self, length: u8) -> Self {
        or_panic(self.try_ipv4_prefix(length))
    }

    /// Sets the length as [`IpExtractor::ipv4_prefix`] does, or returns an error.
    ///
    /// # Errors
    ///
    /// [`PrefixLengthError`] if the length is 0 or above 32.
    pub fn try_ipv4_prefix(mut self, length: u8) -> Result<Self, PrefixLengthError> {
        self.networks.ipv4 = prefix(4, length, IPV4_BITS)?;
        Ok(self)
    }

    /// Returns the key of an address, such as for [`Bans::lift`](crate::Bans::lift). It is that of
    /// [`Key::from`] unless a length was set.
    pub fn key_of(&self, address: impl Into<IpAddr>) -> Key {
        self.networks.key(address.into())
    }
}

impl KeyExtractor for IpExtractor {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let peer = peer_of(parts)?;
        let is_proxy = self.proxies.contains(peer);
        self.untrusted.observe(parts, is_proxy);
        Ok(self.key_of(if is_proxy { self.proxies.client(peer, parts)? } else { peer }))
    }
}

/// The addresses of the proxies whose `X-Forwarded-For` is trusted.
///
/// The text form is a comma-separated list of addresses and networks: `10.0.0.0/8, ::1`, or `none`. Networks that
/// together hold all addresses of IPv4 or IPv6 are an error: a client from there could name any address as
/// its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// The text of no proxy. An empty one is an error: a variable may have been forgotten.
const NONE: &str = "none";

impl TrustedProxies {
    fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|net| net.contains(&ip))
    }

    /// Returns the client behind a peer, as the proxies name it.
    fn client(&self, peer: IpAddr, parts: &Parts) -> Result<IpAddr, KeyError> {
        let headers = parts.headers.get_all("x-forwarded-for").iter().rev();
        let mut claims = headers.flat_map(|header| header.as_bytes().rsplit(|byte| *byte == b','));
        let mut client = peer;
        while self.contains(client) {
            let Some(claim) = claims.next() else { break };
            client = std::str::from_utf8(claim)
                .ok()
                .and_then(|claim| parse_claim(claim.trim_matches([' ', '\t'])))
                .ok_or(KeyError::Invalid)?;
        }
        Ok(client)
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        for (index, net) in self.0.iter().enumerate() {
            write!(f, "{}{net}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for TrustedProxies {
    type Err = TrustedProxiesError;

    fn from_str(text: &str) -> Result<Self, TrustedProxiesError> {
        if text.trim() == NONE {
            return Ok(Self::default());
        }
        let net = |part: &str| {
            let part = part.trim();
            part.parse::<IpNet>()
                .map(canonical)
                .or_else(|_| part.parse::<IpAddr>().map(|ip| IpNet::from(ip.to_canonical())))
                .map_err(|_| {
                    format!("{part:?} is neither an IP address nor a network such as 10.0.0.0/8")
                })
        };
        let nets: Vec<_> =
            text.split(',').map(net).collect::<Result<_, _>>().map_err(TrustedProxiesError)?;
        match everyone_in(&nets) {
            Some(version) => Err(TrustedProxiesError(format!(
                "together they hold all IPv{version} addresses, so every client could name its own \
                 address: name the proxies only"
            ))),
            None => Ok(Self(nets)),
        }
    }
}

/// The error of [`TrustedProxies`] that are malformed, or that hold all addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TrustedProxiesError(String);

/// Returns the version of IP of which the networks together hold every address that a client can have.
fn everyone_in(nets: &[IpNet]) -> Option<u8> {
    let net = |ip: IpAddr, length| IpNet::new_assert(ip, length);
    // No client has an address for groups.
    let groups = net(Ipv4Addr::new(224, 0, 0, 0).into(), 3);
    let union = IpNet::aggregate(&[nets, &[groups]].concat());
    let all = net(Ipv4Addr::UNSPECIFIED.into(), 0);
    // Those that the Internet routes.
    let all_v6 = net(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0).into(), 3);
    let is_in = |all: IpNet| union.iter().any(|net| net.contains(&all));
    if is_in(all) { Some(4) } else { is_in(all_v6).then_some(6) }
}

/// Converts a network of IPv4-mapped addresses into the IPv4 network, because addresses are compared in
/// their canonical form.
fn canonical(net: IpNet) -> IpNet {
    let ip = net.addr().to_canonical();
    match net.prefix_len().checked_sub(96) {
        Some(prefix) if net.addr() != ip => IpNet::new(ip, prefix).unwrap_or(net),
        _ => net,
    }
}

const NO_PEER: KeyError = KeyError::NotProvided {
    fix: if cfg!(feature = "axum") {
        "serve the app with `into_make_service_with_connect_info::<SocketAddr>()`, or put the \
         peer's `SocketAddr` into the request's extensions"
    } else {
        "put the peer's `SocketAddr` into the request's extensions, or enable the feature `axum` \
         for axum's `ConnectInfo` or `tonic` for tonic's `TcpConnectInfo`"
    },
};

fn peer_of(parts: &Parts) -> Result<IpAddr, KeyError> {
    let extensions = &parts.extensions;
    #[cfg(feature = "axum")]
    let address = {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        let connected = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| &info.0);
        connected.or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| &info.0))
    };
    #[cfg(not(feature = "axum"))]
    let address: Option<&SocketAddr> = None;
    #[cfg(feature = "tonic")]
    let address = address.or_else(|| {
        use tonic::transport::server::TcpConnectInfo;
        extensions.get::<TcpConnectInfo>()?.remote_addr.as_ref()
    });
    let ip = address.or_else(|| extensions.get::<SocketAddr>()).map(SocketAddr::ip);
    let ip = ip.or_else(|| extensions.get::<IpAddr>().copied()).ok_or(NO_PEER)?;
    Ok(ip.to_canonical())
}

/// Parses an address in a header: alone, with a port, or in brackets.
fn parse_claim(claim: &str) -> Option<IpAddr> {
    let in_brackets = || claim.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || claim.parse().ok().map(|address: SocketAddr| address.ip());
    let ip: IpAddr = claim.parse().ok().or_else(with_port).or_else(in_brackets)?;
    Some(ip.to_canonical())
}

const IPV4_BITS: u8 = Ipv4Addr::BITS as u8;
const IPV6_BITS: u8 = Ipv6Addr::BITS as u8;

/// The lengths of the networks that addresses are counted by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Networks {
    ipv4: u8,
    ipv6: u8,
}

impl Networks {
    /// A /64 is the smallest IPv6 network that a provider assigns to a customer.
    pub(super) const DEFAULT: Self = Self { ipv4: IPV4_BITS, ipv6: 64 };

    /// Returns the key of an address. An IPv4-mapped address counts as the IPv4 address.
    pub(super) fn key(self, address: IpAddr) -> Key {
        let length = |ip: &IpAddr| if ip.is_ipv4() { self.ipv4 } else { self.ipv6 };
        match address.to_canonical() {
            IpAddr::V4(ip) if self.ipv4 == IPV4_BITS => Key::of_text(format_args!("{ip}")),
            ip => Key::of_text(format_args!("{}", IpNet::new_assert(ip, length(&ip)).trunc())),
        }
    }
}

/// Returns the length of a network, if an address of this version can have it.
const fn prefix(version: u8, length: u8, longest: u8) -> Result<u8, PrefixLengthError> {
    match 1 <= length && length <= longest {
        true => Ok(length),
        false => Err(PrefixLengthError { version, length, longest }),
    }
}

/// The error of the length of a network that an address can't have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "/{length} is not the length of an IPv{version} network: it is 1 to {longest}, and 0 would count \
     all clients as one"
)]
pub struct PrefixLengthError {
    version: u8,
    length: u8,
    longest: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_network() {
        let error = "10.0.0.0/8, 10.0.0.0/33".parse::<TrustedProxies>().unwrap_err();
        assert!(error.to_string().contains("10.0.0.0/33"));
        assert!("".parse::<TrustedProxies>().is_err());
    }

    #[test]
    fn not_everyone_is_a_proxy() {
        let everyone = [
            "0.0.0.0/0",
            "10.0.0.1, ::/0",
            "::ffff:0:0/96",
            "0.0.0.0/1, 128.0.0.0/1",
            "128.0.0.0/2, ::1, 192.0.0.0/3, ::ffff:0.0.0.0/97",
            "8000::/1, ::/2, 4000::/2",
            "2000::/3",
        ];
        for text in everyone {
            let error = text.parse::<TrustedProxies>().unwrap_err();
            assert!(error.to_string().contains("every client"), "{text}: {error}");
        }
        for text in ["0.0.0.0/1, 192.0.0.0/2", "10.0.0.0/8, fc00::/7", "2000::/4, ::ffff:0:0/97"] {
            assert!(text.parse::<TrustedProxies>().is_ok(), "{text}");
        }
    }
}
