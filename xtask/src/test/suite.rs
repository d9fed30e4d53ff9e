//! Runs tests with cargo and adds up what its many test binaries report.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::python;
use crate::run::{cargo, succeeded};

/// All tests of the workspace.
pub(super) fn run_all() -> Result<()> {
    let mut test = cargo();
    test.args(["test", "--workspace"]);
    if let Some(python) = python::interpreter() {
        test.env("EDGE_ROUTER_TEST_PYTHON", python);
    }
    run_test(&mut test)
}

/// Runs `cargo test`, showing what it prints and then the sum.
pub(super) fn run_test(test: &mut Command) -> Result<()> {
    let mut child = test.stdout(Stdio::piped()).spawn().context("can't start cargo")?;
    let mut sum = Sum::default();
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line?;
        println!("{line}");
        sum.add(&line);
    }
    let status = child.wait()?;
    println!("in all: {} passed, {} failed, {} ignored", sum.passed, sum.failed, sum.ignored);
    succeeded(status, test)
}

#[derive(Debug, Default, PartialEq)]
struct Sum {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Sum {
    /// Adds a line like `test result: ok. 3 passed; 0 failed; 1 ignored; ..`.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let words: Vec<_> = result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let &[count, what] = pair else { continue };
            let Ok(count) = count.parse::<u32>() else { continue };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    #[test]
    fn the_results_of_all_binaries_are_added_up() {
        let mut sum = Sum::default();
        sum.add("running 4 tests");
        sum.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        );
        sum.add(
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1s",
        );
        assert_eq!(sum, Sum { passed: 13, failed: 2, ignored: 1 });
    }
}
