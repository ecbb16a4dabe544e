//! What the fuzz targets in `rust/fuzz` call inside this crate.

pub use crate::fleet::cache_events::batch;
pub use crate::proxy::usage;
pub use crate::upstream::request_body::RequestBody;
pub use crate::upstream::{forwarding, tail};

use crate::admin::worker_metrics::Families;
use crate::base::page::Page;

/// The pages of workers, named by their numbers, as one page.
pub fn joined_metrics(pages: &[&str]) -> String {
    let mut families = Families::default();
    for (number, page) in pages.iter().enumerate() {
        families.add(&number.to_string(), page);
    }
    let mut joined = Page::default();
    families.write(&mut joined);
    joined.to_string()
}
