//! TLS for clients: the router's certificate and its reload.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::base::certificates::{certificates, unreadable};
use crate::base::config_error::ConfigError;
use crate::base::stream::Stream;

/// The router's certificate and key, as last read from their files.
pub struct Tls {
    cert_path: PathBuf,
    key_path: PathBuf,
    current: ArcSwap<ServerConfig>,
}

impl Tls {
    /// Reads the files; None if there are none to read.
    pub fn read(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Tls>, ConfigError> {
        let (cert_path, key_path) = match (cert, key) {
            (None, None) => return Ok(None),
            (Some(cert), Some(key)) => (cert, key),
            (Some(_), None) => {
                return Err(ConfigError(
                    "tls_key_path: is missing; it goes with tls_cert_path".to_owned(),
                ));
            }
            (None, Some(_)) => {
                return Err(ConfigError(
                    "tls_cert_path: is missing; it goes with tls_key_path".to_owned(),
                ));
            }
        };
        let current = ArcSwap::from(server_config(&cert_path, &key_path)?);
        Ok(Some(Tls {
            cert_path,
            key_path,
            current,
        }))
    }

    /// Reads the files again. On an error the previous certificate stays.
    fn reload(&self) -> Result<(), ConfigError> {
        let config = server_config(&self.cert_path, &self.key_path)?;
        self.current.store(config);
        Ok(())
    }

    /// Sets up TLS on a connection that was just accepted.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let acceptor = TlsAcceptor::from(self.current.load_full());
        let stream = acceptor.accept(stream).await?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }
}

/// Reads certificate and key again whenever a reload is asked for.
pub async fn watch(tls: Arc<Tls>, mut reload: watch::Receiver<()>) {
    while reload.changed().await.is_ok() {
        let cert = tls.cert_path.display();
        match tls.reload() {
            Ok(()) => tracing::info!(%cert, "certificate was read again"),
            Err(why) => tracing::error!(
                %why,
                "certificate could not be read again, the one before stays"
            ),
        }
    }
}

fn server_config(cert_path: &Path, key_path: &Path) -> Result<Arc<ServerConfig>, ConfigError> {
    let certs = certificates("tls_cert_path", cert_path)?;
    let key = PrivateKeyDer::from_pem_file(key_path)
        .map_err(|error| unreadable("tls_key_path", key_path, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has what the default versions need")
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|error| {
            let (cert, key) = (cert_path.display(), key_path.display());
            ConfigError(match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("tls_key_path: {key} is not the key of the certificate in {cert}")
                }
                error => format!("tls_cert_path: {cert} with the key in {key}: {error}"),
            })
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
