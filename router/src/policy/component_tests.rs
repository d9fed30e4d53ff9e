//! What the loader says of files that are no policies.

use super::super::engine::{PolicyEngine, PolicySettings};
use super::compile;

fn refusal(wat: &str) -> String {
    let engine = PolicyEngine::new(PolicySettings::default()).unwrap();
    let bytes = wat::parse_str(wat).unwrap();
    compile(&engine, &bytes).err().unwrap().to_string()
}

#[test]
fn a_core_module_is_named_as_such() {
    assert!(refusal("(module)").starts_with("is a core module, not a component"));
}

#[test]
fn missing_hooks_are_named_with_what_was_found() {
    assert!(refusal("(component)").ends_with("found no exports"));
    let other = r#"(component (instance $i) (export "acme:thing/run@1.0.0" (instance $i)))"#;
    assert_eq!(
        refusal(other),
        "exports no edge-router:policy/{scheduler,prefill-rewriter,kv-merger,observer}@0.1; found acme:thing/run@1.0.0"
    );
}

#[test]
fn another_version_of_the_contract_is_named() {
    let later = r#"(component (instance $i) (export "edge-router:policy/scheduler@0.2.0" (instance $i)))"#;
    assert_eq!(refusal(later), "was built for edge-router:policy 0.2.0, this router offers 0.1");
}

#[test]
fn a_hook_of_the_wrong_shape_is_named() {
    let empty = r#"(component (instance $i) (export "edge-router:policy/scheduler@0.1.0" (instance $i)))"#;
    let text = refusal(empty);
    assert!(text.starts_with("does not fit this router: interface scheduler:"), "{text}");
    assert!(text.contains("schedule"), "{text}");
}

#[test]
fn garbage_and_halves_are_refused() {
    let engine = PolicyEngine::new(PolicySettings::default()).unwrap();
    let whole = wat::parse_str(
        r#"(component (core module (memory 1)) (instance $i) (export "a:b/c" (instance $i)))"#,
    )
    .unwrap();
    for bytes in [&b""[..], b"hello, I am no wasm", &whole[..whole.len() - 3], &whole[..9]] {
        assert!(compile(&engine, bytes).is_err());
    }
}
