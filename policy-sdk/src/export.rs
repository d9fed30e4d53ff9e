//! What makes a component of a policy. Natively there is nothing of it but the
//! empty expansion of [`export!`](crate::export!).

#[cfg(target_arch = "wasm32")]
pub mod guest;

/// Makes the crate a policy component: exports every hook of this type's
/// [`Policy`](crate::Policy), all on one instance. Once per crate; expands to
/// nothing on native targets, so that tests run there.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
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
