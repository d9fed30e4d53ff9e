//! What makes a component of a policy; nothing of it exists natively.

#[cfg(target_arch = "wasm32")]
pub mod guest;

/// Makes the crate a policy component: exports every hook of this type's
/// [`Policy`](crate::Policy), all on one instance. Once per crate; exports
/// nothing on native targets, so that tests run there.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
        // Natively this is all: a mistake shows in `cargo test` already, and
        // the policy doesn't look like dead code.
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(&str) -> ::std::result::Result<$policy, $crate::PolicyError> =
            <$policy as $crate::Policy>::configure;

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "exported functions of a component are")]
        const _: () = {
            struct Component;

            impl $crate::__guest::Component for Component {
                type Policy = $policy;

                fn slot() -> &'static $crate::__guest::Slot<$policy> {
                    ::std::thread_local! {
                        static POLICY: ::std::cell::RefCell<Option<$policy>> =
                            const { ::std::cell::RefCell::new(None) };
                    }
                    &POLICY
                }
            }

    $crate::__guest::__export_policy!(Component with_types_in $crate::__guest::bindings);
        };
    };
}
