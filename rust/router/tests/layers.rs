//! Checks the router's layers (a file imports only from its own folder and from lower ones), that no files of a crate
//! import from each other in a circle, and that no two public types of the Rust crates have one name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest.
const LAYERS: [&str; 7] = [
    "base", "upstream", "fleet", "proxy", "admin", "front", "app",
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| !path.ends_with("target"))
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .collect()
}

/// Every path from `crate` on in a text, with `{a, b}` written out.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code: Vec<&str> = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let is_whole_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_whole_word {
            tree(&code[at + "crate::".len()..], &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Reads one tree of a `use`, below `above`; returns what follows it.
fn tree<'a>(text: &'a str, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = tree(rest, &mut above.clone(), found).trim_start();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    if name.is_empty() {
        return rest;
    }
    above.push(name.to_owned());
    match rest.strip_prefix("::") {
        Some(rest) => tree(rest, above, found),
        None => {
            found.push(above.clone());
            rest
        }
    }
}

/// The folder that a path leads into, relative to the source.
fn folder_of(path: &[String]) -> PathBuf {
    let mut folder = PathBuf::new();
    for name in path {
        if !source().join(&folder).join(name).is_dir() {
            break;
        }
        folder.push(name);
    }
    folder
}

/// Which folder imports from which others, and a file that does.
fn imports() -> BTreeMap<(PathBuf, PathBuf), PathBuf> {
    let mut imports = BTreeMap::new();
    for file in files(&source()) {
        let name = file.strip_prefix(source()).unwrap().to_owned();
        let own = name.parent().unwrap().to_owned();
        if own.as_os_str().is_empty() || own.starts_with("bin") {
            continue;
        }
        for path in paths(&fs::read_to_string(&file).unwrap()) {
            let other = folder_of(&path);
            assert!(
                !other.as_os_str().is_empty(),
                "{}: crate::{} is in no layer; name the module that has it",
                name.display(),
                path.join("::")
            );
            if other != own {
                imports.insert((own.clone(), other), name.clone());
            }
        }
    }
    imports
}

fn rank(folder: &Path) -> usize {
    let layer = folder.iter().next().unwrap().to_str().unwrap();
    let rank = LAYERS.iter().position(|known| *known == layer);
    rank.unwrap_or_else(|| panic!("{layer} is none of the layers: add it to LAYERS"))
}

#[test]
fn imports_point_down() {
    let upwards: Vec<String> = imports()
        .iter()
        .filter(|((own, other), _)| rank(own) < rank(other))
        .map(|((_, other), file)| format!("{} imports from {}", file.display(), other.display()))
        .collect();
    assert!(upwards.is_empty(), "{}", upwards.join("\n"));
}

#[test]
fn no_folders_import_from_each_other() {
    let open = circles(imports().into_keys().collect());
    assert!(open.is_empty(), "circles among {open:?}");
}

/// Which file of a crate imports from which others, without what tests import.
fn imports_of_files(source: &Path) -> BTreeSet<(PathBuf, PathBuf)> {
    let mut imports = BTreeSet::new();
    for file in files(source) {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for path in paths(code) {
            let mut module = source.to_owned();
            for name in path {
                let other = module.join(&name).with_extension("rs");
                if other.is_file() && other != file {
                    imports.insert((file.clone(), other));
                }
                module.push(name);
            }
        }
    }
    imports
}

#[test]
fn no_files_import_from_each_other() {
    let crates = source().join("../..");
    for name in ["faults", "payload", "policy", "relay", "router"] {
        let imports = imports_of_files(&crates.join(name).join("src").canonicalize().unwrap());
        assert!(!imports.is_empty(), "{name}: no imports are found");
        let open = circles(imports);
        assert!(open.is_empty(), "circles among {open:#?}");
    }
}

/// The imports that are in a circle, or lead to one.
fn circles(mut open: BTreeSet<(PathBuf, PathBuf)>) -> BTreeSet<(PathBuf, PathBuf)> {
    // A folder that imports from none that is left cannot be in a circle.
    loop {
        let importing: BTreeSet<PathBuf> = open.iter().map(|(own, _)| own.clone()).collect();
        let before = open.len();
        open.retain(|(_, other)| importing.contains(other));
        if open.len() == before {
            return open;
        }
    }
}

#[test]
fn no_two_public_types_have_one_name() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files(crates) {
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        for line in fs::read_to_string(&file).unwrap().lines() {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .collect();
            if let [
                "pub",
                "struct" | "enum" | "trait" | "type" | "union",
                name,
                ..,
            ] = words[..]
            {
                let named = places.entry(name.to_owned()).or_default();
                named.push(file.strip_prefix(crates).unwrap().display().to_string());
            }
        }
    }
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "rename all but one: {places:#?}");
}

#[test]
fn trees_of_uses_are_written_out() {
    let text = "use crate::a::{b, c::{self, D}};\n// crate::no\nlet x = crate::e::f(); my_crate::g";
    let found: Vec<String> = paths(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a::b", "a::c::self", "a::c::D", "e::f"]);
}
