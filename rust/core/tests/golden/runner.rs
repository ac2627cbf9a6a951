//! A small data-driven runner, after the one of raft-rs.
//!
//! A file is a list of blocks, each a few command lines, a line `----`, and what the commands answered, up to a blank
//! line. Lines that begin with `#` between blocks are comments. One machine lives through the whole file.
#![allow(clippy::disallowed_methods)] // tests read files and one environment variable

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What is tested.
pub trait Machine {
    /// Carries out one command line; returns what came of it, one thing a line. Panics on what it cannot read.
    fn exec(&mut self, line: &str) -> String;
}

/// Runs `tests/golden/PREFIX_*.txt`, each with a machine of its own.
pub fn run<M: Machine>(prefix: &str, make: impl Fn() -> M) {
    let files = files(prefix);
    assert!(!files.is_empty(), "no golden file begins with {prefix}_");
    let update = std::env::var("UPDATE_GOLDEN").is_ok_and(|value| value == "1");
    let mut failures = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (actual, differences) = replay(&text, &mut make());
        if update {
            std::fs::write(&file, actual).unwrap();
        } else if !differences.is_empty() {
            write!(failures, "\n{}\n{differences}", file.display()).unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}\n(- expected, + actual; UPDATE_GOLDEN=1 rewrites the files)");
}

fn files(prefix: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.ends_with(".txt") && name.starts_with(&format!("{prefix}_"))
    };
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_ours).collect();
    files.sort();
    files
}

/// Runs the commands of a file; returns the file as it should be and what is different.
fn replay(text: &str, machine: &mut impl Machine) -> (String, String) {
    let (mut output, mut differences) = (String::new(), String::new());
    let mut lines = text.lines().enumerate();
    let mut commands = Vec::new();
    while let Some((number, line)) = lines.next() {
        output.push_str(line);
        output.push('\n');
        if line != "----" {
            if !line.is_empty() && !line.starts_with('#') {
                commands.push(line);
            }
            continue;
        }
        let expected: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.is_empty()).collect();
        let answers: Vec<String> = commands.drain(..).map(|command| machine.exec(command)).collect();
        let actual: Vec<&str> = answers.iter().flat_map(|answer| answer.lines()).collect();
        actual.iter().for_each(|line| writeln!(output, "{line}").unwrap());
        output.push('\n');
        if actual != expected {
            writeln!(differences, "at line {}:\n{}", number + 1, diff(&expected, &actual)).unwrap();
        }
    }
    assert!(commands.is_empty(), "commands without ---- at the end: {commands:?}");
    let end = output.trim_end().len();
    output.truncate(end);
    output.push('\n');
    (output, differences)
}

/// The lines that differ, between those that do not.
fn diff(expected: &[&str], actual: &[&str]) -> String {
    let same = expected.iter().zip(actual).take_while(|(a, b)| a == b).count();
    let (expected_rest, actual_rest) = (&expected[same..], &actual[same..]);
    let same_end = expected_rest.iter().rev().zip(actual_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    let mut write =
        |mark: char, lines: &[&str]| lines.iter().for_each(|line| writeln!(text, "  {mark} {line}").unwrap());
    write(' ', &expected[..same]);
    write('-', &expected_rest[..expected_rest.len() - same_end]);
    write('+', &actual_rest[..actual_rest.len() - same_end]);
    write(' ', &expected_rest[expected_rest.len() - same_end..]);
    text
}

#[test]
fn the_runner_itself() {
    struct Echo(u32);
    impl Machine for Echo {
        fn exec(&mut self, line: &str) -> String {
            self.0 += 1;
            format!("{}\n{line}", self.0)
        }
    }
    let text = "# why\na\nb\n----\n1\na\n2\nb\n\n# more\nc\n----\n3\nd\n";
    let (output, differences) = replay(text, &mut Echo(0));
    assert_eq!(output, text.replace("\nd\n", "\nc\n"));
    assert_eq!(differences, "at line 12:\n    3\n  - d\n  + c\n\n");
}
