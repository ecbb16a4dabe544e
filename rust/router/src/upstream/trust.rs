//! TLS to workers whose URL is https, and the authorities that may sign their certificates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

use crate::base::certificates::certificates;
use crate::base::config_error::ConfigError;
use crate::base::stream::Stream;

/// The authorities that may sign a worker's certificate: those in a file, or else those that the system trusts.
pub struct Trust {
    ca_file: Option<PathBuf>,
    /// None until the first worker needs the system's authorities: reading them takes milliseconds.
    current: ArcSwapOption<ClientConfig>,
}

impl Trust {
    pub fn read(ca_file: Option<PathBuf>) -> Result<Trust, ConfigError> {
        let trust = Trust {
            ca_file,
            current: ArcSwapOption::empty(),
        };
        trust.reload()?;
        Ok(trust)
    }

    /// Reads the authorities again. On an error the previous ones stay.
    fn reload(&self) -> Result<(), ConfigError> {
        let listed = self.ca_file.as_deref().map(listed).transpose()?;
        self.current.store(listed.map(client_config));
        Ok(())
    }

    /// Sets up TLS on a connection to a worker, which must show a certificate for that name.
    pub async fn secure(&self, name: ServerName<'static>, stream: TcpStream) -> io::Result<Stream> {
        let config = match self.current.load_full() {
            Some(config) => config,
            None => {
                let config = client_config(known_to_the_system()?);
                self.current.store(Some(config.clone()));
                config
            }
        };
        let stream = TlsConnector::from(config).connect(name, stream).await;
        let stream = stream.map_err(|error| io::Error::new(error.kind(), explained(&error)))?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }
}

/// Reads the authorities again whenever a reload is asked for.
pub async fn watch(trust: Arc<Trust>, mut reload: watch::Receiver<()>) {
    while reload.changed().await.is_ok() {
        if let Err(why) = trust.reload() {
            tracing::error!(
                %why,
                "authorities of workers' certificates could not be read again, those before stay"
            );
        }
    }
}

fn listed(path: &Path) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("worker_ca_file", path)? {
        let path = path.display();
        roots
            .add(certificate)
            .map_err(|error| ConfigError(format!("worker_ca_file: {path}: {error}")))?;
    }
    Ok(roots)
}

fn known_to_the_system() -> io::Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let why = found.errors.first().map(|error| format!(" ({error})"));
    let message = format!(
        "this system knows no authority that could vouch for the worker{}; name some with worker_ca_file",
        why.unwrap_or_default()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

fn client_config(roots: RootCertStore) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has what the default versions need")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Says what failed in a handshake, and what to do about it.
fn explained(error: &io::Error) -> String {
    let cause = error.get_ref();
    match cause.and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => unaccepted(why),
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not speak TLS there; is its URL http://?".to_owned()
        }
        _ => format!("no TLS connection: {error}"),
    }
}

fn unaccepted(why: &CertificateError) -> String {
    let why = match why {
        CertificateError::UnknownIssuer => {
            return "no trusted authority has signed its certificate; name the one that has with worker_ca_file"
                .to_owned();
        }
        CertificateError::Other(why) => match why.0.downcast_ref() {
            Some(webpki::Error::CaUsedAsEndEntity) => {
                "it is an authority's (CA:TRUE), as \"openssl req -x509\" makes them; the worker needs one \
                 of its own (CA:FALSE)"
                    .to_owned()
            }
            Some(webpki::Error::UnsupportedCertVersion) => {
                "it is of X.509 version 1, without a subjectAltName; make one that names the worker there"
                    .to_owned()
            }
            _ => why.0.to_string(),
        },
        why => why.to_string(),
    };
    format!("its certificate is not accepted: {why}")
}
