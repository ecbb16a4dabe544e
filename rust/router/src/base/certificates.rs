//! Reads certificates from PEM files.

use std::path::Path;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

use crate::base::config_error::ConfigError;

/// The certificates in the file that a field of the configuration names. A file without any is an error.
pub fn certificates(field: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certs: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(field, path, &error))?;
    if certs.is_empty() {
        return Err(unreadable(field, path, &pem::Error::NoItemsFound));
    }
    Ok(certs)
}

/// The error for a PEM file that could not be read.
pub fn unreadable(field: &str, path: &Path, error: &pem::Error) -> ConfigError {
    let path = path.display();
    ConfigError(match error {
        pem::Error::Io(error) => format!("{field}: cannot read {path}: {error}"),
        pem::Error::NoItemsFound => format!(
            "{field}: {path} holds no {}; it must be a PEM file",
            match field {
                "tls_key_path" => "private key",
                _ => "certificate",
            }
        ),
        error => format!("{field}: {path} is not a PEM file: {error}"),
    })
}
