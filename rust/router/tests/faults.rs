//! The router's program where the environment names a board of faults.

use std::process::Command;

#[test]
fn a_router_without_its_board_does_not_start() {
    let run = Command::new(env!("CARGO_BIN_EXE_sglang-omni-router"))
        .args(["--port", "0"])
        .env("SGLANG_OMNI_FAULTS", "/nowhere/board")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2));
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(
        said,
        "sglang-omni-router: error: SGLANG_OMNI_FAULTS=/nowhere/board: No such file or directory (os error 2)\n"
    );
}
