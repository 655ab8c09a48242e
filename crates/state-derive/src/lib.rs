//! `#[derive(Plain)]` and `#[derive(State)]`: see `contigua_state`.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Fields, Ident, Index, Member, Result, parse_macro_input,
    parse_quote,
};

/// Makes a value that is read whole: a structure or an enumeration of such values.
#[proc_macro_derive(Plain)]
pub fn plain(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive_plain(input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Makes a structure whose fields are read into what is there.
///
/// Of a field, `#[state(skip)]` says that it follows from the configuration; `#[state(fixed)]`, that
/// how many components it has does (arrays, options); `#[state(boxed)]`, that a component in a box is
/// there or not as the configuration says; `#[state(inner)]`, that it is a box around a component.
/// Of a structure, `#[state(parts)]` says that its type parameters are components, not values.
#[proc_macro_derive(State, attributes(state))]
pub fn state(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive_state(input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn derive_plain(mut input: DeriveInput) -> Result<TokenStream> {
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::contigua_state::Plain));
    }
    let (write, read) = match &input.data {
        Data::Struct(data) => {
            let (bindings, members) = parts(&data.fields);
            (
                quote! {
                    let Self { #(#members: #bindings),* } = self;
                    #(::contigua_state::Plain::write(#bindings, out);)*
                },
                quote! {
                    ::core::result::Result::Ok(Self {
                        #(#members: ::contigua_state::Plain::read(input)?),*
                    })
                },
            )
        }
        Data::Enum(data) => {
            let mut writes = Vec::new();
            let mut reads = Vec::new();
            for (tag, variant) in data.variants.iter().enumerate() {
                let tag = u8::try_from(tag)
                    .map_err(|_| Error::new_spanned(variant, "more than 256 variants"))?;
                let name = &variant.ident;
                let (bindings, members) = parts(&variant.fields);
                writes.push(quote! {
                    Self::#name { #(#members: #bindings),* } => {
                        out.byte(#tag);
                        #(::contigua_state::Plain::write(#bindings, out);)*
                    }
                });
                reads.push(quote! {
                    #tag => Self::#name { #(#members: ::contigua_state::Plain::read(input)?),* }
                });
            }
            (
                quote!(match self { #(#writes)* }),
                quote! {
                    ::core::result::Result::Ok(match <u8 as ::contigua_state::Plain>::read(input)? {
                        #(#reads,)*
                        _ => return ::core::result::Result::Err(::contigua_state::Error::Value),
                    })
                },
            )
        }
        Data::Union(_) => return Err(Error::new(Span::call_site(), "a union")),
    };
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::contigua_state::Plain for #name #arguments #bounds {
            #[inline]
            fn write(&self, out: &mut ::contigua_state::Writer<'_>) {
                #write
            }
            #[inline]
            fn read(
                input: &mut ::contigua_state::Reader<'_>,
            ) -> ::core::result::Result<Self, ::contigua_state::Error> {
                #read
            }
        }
    })
}

/// Treatment of a field.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Whole,
    Fixed,
    Boxed,
    Inner,
    Skip,
}

fn derive_state(mut input: DeriveInput) -> Result<TokenStream> {
    let has_parts = has_parts(&input.attrs)?;
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(if has_parts {
            parse_quote!(::contigua_state::State)
        } else {
            parse_quote!(::contigua_state::Plain)
        });
    }
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(Span::call_site(), "State is for structures"));
    };
    let (bindings, members) = parts(&data.fields);
    let mut saves = Vec::new();
    let mut loads = Vec::new();
    let mut patterns = Vec::new();
    // What lies where, so that another build's state is not taken for this one's.
    let mut layout = input.ident.to_string();
    for ((binding, member), field) in bindings.iter().zip(&members).zip(&data.fields) {
        let kind = kind(&field.attrs)?;
        let attributes = field.attrs.iter().filter(|a| a.path().is_ident("cfg"));
        if kind == Kind::Skip {
            patterns.push(quote!(#(#attributes)* #member: _));
            continue;
        }
        patterns.push(quote!(#member: #binding));
        let ty = &field.ty;
        layout.push_str(&quote!(#member: #ty;).to_string());
        let (save, load) = match kind {
            Kind::Fixed => (
                quote!(::contigua_state::save_fixed(#binding, out)),
                quote!(::contigua_state::load_fixed(#binding, input)),
            ),
            Kind::Boxed => (
                quote!(::contigua_state::save_option(#binding.as_deref(), out)),
                quote!(::contigua_state::load_option(#binding.as_deref_mut(), input)),
            ),
            Kind::Inner => (
                quote!(::contigua_state::State::save(&**#binding, out)),
                quote!(::contigua_state::State::load(&mut **#binding, input)),
            ),
            Kind::Whole | Kind::Skip => (
                quote!(::contigua_state::State::save(#binding, out)),
                quote!(::contigua_state::State::load(#binding, input)),
            ),
        };
        saves.push(quote!(#save;));
        loads.push(quote!(#load?;));
    }
    let layout = checksum(&layout);
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::contigua_state::State for #name #arguments #bounds {
            fn save(&self, out: &mut ::contigua_state::Writer<'_>) {
                ::contigua_state::Plain::write(&#layout, out);
                let Self { #(#patterns),* } = self;
                #(#saves)*
            }
            fn load(
                &mut self,
                input: &mut ::contigua_state::Reader<'_>,
            ) -> ::core::result::Result<(), ::contigua_state::Error> {
                input.expect(#layout)?;
                let Self { #(#patterns),* } = self;
                #(#loads)*
                ::core::result::Result::Ok(())
            }
        }
    })
}

/// Names for the fields, and what the structure calls them.
fn parts(fields: &Fields) -> (Vec<Ident>, Vec<Member>) {
    let members = fields.iter().enumerate().map(|(at, field)| {
        field
            .ident
            .clone()
            .map_or_else(|| Member::Unnamed(Index::from(at)), Member::Named)
    });
    let bindings = (0..fields.len()).map(|at| format_ident!("field_{at}"));
    (bindings.collect(), members.collect())
}

fn kind(attributes: &[Attribute]) -> Result<Kind> {
    let mut kind = Kind::Whole;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("state")) {
        attribute.parse_nested_meta(|meta| {
            kind = if meta.path.is_ident("skip") {
                Kind::Skip
            } else if meta.path.is_ident("fixed") {
                Kind::Fixed
            } else if meta.path.is_ident("boxed") {
                Kind::Boxed
            } else if meta.path.is_ident("inner") {
                Kind::Inner
            } else {
                return Err(meta.error("known are skip, fixed, boxed and inner"));
            };
            Ok(())
        })?;
    }
    Ok(kind)
}

fn has_parts(attributes: &[Attribute]) -> Result<bool> {
    let mut has_parts = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("state")) {
        attribute.parse_nested_meta(|meta| {
            has_parts = meta.path.is_ident("parts");
            if has_parts {
                Ok(())
            } else {
                Err(meta.error("known is parts"))
            }
        })?;
    }
    Ok(has_parts)
}

/// FNV-1a.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
