//! Command line of the simulator; see docs/router-policies.md.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use router_sim::trace::{self, Shape};
use router_sim::{cold, exact, growth, tables};

const USAGE: &str = "\
usage: router-sim tables                 hit rate, balance and latency of every policy
       router-sim held-out               hit rate and balance of cache_aware, of seeds that chose nothing
       router-sim cold                   how a new router spreads its first requests
       router-sim exact [WORKERS]        hit rates of routers that know what is in the caches, or the cost of their decisions
       router-sim growth FILE           decision cost, hit rate and latency as trees, fleets and traffic
                                        grow, for plot.py
       router-sim scale WORKERS REQUESTS cache_aware and the classic one in one large fleet
       router-sim write-trace NAME FILE  the requests of a trace, one JSON object a line
traces: multi-turn shared-prefixes";

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["tables"] => tables::print(&mut io::stdout().lock()),
        ["held-out"] => tables::print_held_out(&mut io::stdout().lock()),
        ["exact", workers] => match workers.parse() {
            Ok(workers) => exact::cost(&mut io::stdout().lock(), workers),
            Err(_) => usage(),
        },
        ["exact"] => exact::print(&mut io::stdout().lock()),
        ["cold"] => cold::print(&mut io::stdout().lock()),
        ["growth", file] => {
            let mut out = BufWriter::new(File::create(file)?);
            writeln!(out, "{}", growth::measure())?;
            out.flush()
        }
        ["scale", workers, requests] => match (workers.parse(), requests.parse()) {
            (Ok(workers), Ok(requests)) if workers >= 8 => {
                let rows = growth::scale(workers, requests);
                writeln!(io::stdout(), "{rows:#}")
            }
            _ => usage(),
        },
        ["write-trace", name, file] => {
            let shape = match name {
                "multi-turn" => Shape::multi_turn(),
                "shared-prefixes" => Shape::shared_prefixes(),
                _ => return usage(),
            };
            let mut out = BufWriter::new(File::create(file)?);
            trace::write(&shape.make(), &mut out)?;
            out.flush()
        }
        _ => usage(),
    }
}

fn usage() -> io::Result<()> {
    eprintln!("{USAGE}");
    std::process::exit(2)
}
