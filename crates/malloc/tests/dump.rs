//! Does a process tell its figures when a signal asks, whatever it is doing?

mod common;

use common::{CACHES, compile, run};

/// Figures by name of each dump in a text.
fn dumps(text: &str) -> Vec<Vec<(&str, u64)>> {
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("contigua-malloc: figures of process") {
            found.push(Vec::new());
        } else if let Some((name, value)) = line.split_once(' ')
            && let (Some(dump), Ok(value)) = (found.last_mut(), value.trim().parse())
        {
            dump.push((name, value));
        }
    }
    found
}

#[test]
fn is_one_signal_one_text_and_one_profile() {
    let program = compile("dump.c", &[]);
    let directory = tempfile::tempdir().expect("a directory");
    let profile = directory.path().join("heap.txt");
    let profile = profile.to_str().expect("UTF-8");
    for caches in CACHES {
        let variables = [caches[0], ("CONTIGUA_MALLOC_DUMP", "USR2")];
        let output = run(&program, &["idle"], &variables);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let dumps = dumps(&text);
        let [dump] = &dumps[..] else {
            panic!("not one dump: {text}")
        };
        let large = dump.iter().find(|(name, _)| *name == "large_in_use");
        assert_eq!(large, Some(&("large_in_use", 5 << 20)), "{text}");
        assert!(text.contains("  size    in use     cached       free"));
    }
    // Killed without an exit, it leaves the profile that the signal asked for.
    let variables = [
        ("CONTIGUA_MALLOC_DUMP", "SIGUSR2:/dev/null"),
        ("CONTIGUA_MALLOC_PROFILE", profile),
        ("CONTIGUA_MALLOC_PROFILE_RATE", "1"),
    ];
    let output = run(&program, &["idle"], &variables);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert!(std::fs::metadata(profile).expect("a profile").len() > 100);
}

#[test]
fn do_signals_amid_allocations_hang_nobody() {
    let program = compile("dump.c", &[]);
    for caches in CACHES {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("figures");
        let dump = format!("SIGUSR2:{}", file.display());
        let profile = directory.path().join("%p.txt");
        let variables = [
            caches[0],
            ("CONTIGUA_MALLOC_DUMP", dump.as_str()),
            ("CONTIGUA_MALLOC_PROFILE", profile.to_str().expect("UTF-8")),
        ];
        let output = run(&program, &[], &variables);
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&file).expect("figures");
        let dumps = dumps(&text);
        // Signals that come while one is being written share it.
        assert!((50..=2000).contains(&dumps.len()), "{}", dumps.len());
        let whole = dumps.iter().filter(|dump| dump.len() > 30).count();
        assert!(
            whole * 2 > dumps.len(),
            "{whole} of {} are whole",
            dumps.len()
        );
        // Children of forks have files of their own.
        let files = std::fs::read_dir(&directory).expect("a directory").count();
        assert!(files >= 2 + 6, "{files} files");
    }
}
