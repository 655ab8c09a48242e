//! State as bytes, and bytes back into state.
//!
//! A server is made from its configuration as always; then what changes while it runs is loaded
//! into it. So there are two kinds of things:
//!
//! - [`Plain`] values are read whole: numbers, records, enumerations, and lists and maps of them.
//! - [`State`] is read into what is there. Components derive it: what follows from the
//!   configuration is skipped, and arrays whose length follows from it must have that length
//!   (`#[state(fixed)]`). Every plain value is state, too.
//!
//! Numbers are little-endian and have their width. A component begins with a checksum of its
//! fields' names and types, so that a build with other fields refuses what this one has written.
//!
//! Bytes may be damaged or hostile: reading ends in an [`Error`], never in a panic, and allocates
//! no more than a small multiple of the bytes that are really there.

mod bytes;
mod values;

pub use bytes::{Error, Reader, Writer};
pub use contigua_state_derive::{Plain, State};

/// A value that is written and read whole.
pub trait Plain: Sized {
    /// Appends the value.
    fn write(&self, out: &mut Writer<'_>);

    /// Reads what [`Plain::write`] wrote.
    ///
    /// # Errors
    /// [`Error`], when the bytes are not such a value.
    fn read(input: &mut Reader<'_>) -> Result<Self, Error>;
}

/// State of a component that changes while it runs.
pub trait State {
    /// Appends it.
    fn save(&self, out: &mut Writer<'_>);

    /// Puts what [`State::save`] wrote in its place. After an error the component is unusable.
    ///
    /// # Errors
    /// [`Error`], when the bytes are not the state of a component configured like this one.
    fn load(&mut self, input: &mut Reader<'_>) -> Result<(), Error>;
}

impl<T: Plain> State for T {
    #[inline]
    fn save(&self, out: &mut Writer<'_>) {
        self.write(out);
    }

    #[inline]
    fn load(&mut self, input: &mut Reader<'_>) -> Result<(), Error> {
        *self = T::read(input)?;
        Ok(())
    }
}

/// Components whose number follows from the configuration.
pub trait Elements {
    /// Each.
    type Element: State;

    /// All of them.
    fn all(&self) -> &[Self::Element];

    /// All of them, to be changed.
    fn all_mut(&mut self) -> &mut [Self::Element];
}

macro_rules! elements {
    ($(($($generics:tt)*) $collection:ty, $all:ident, $all_mut:ident;)*) => {$(
        impl<T: State, $($generics)*> Elements for $collection {
            type Element = T;

            fn all(&self) -> &[T] {
                self.$all()
            }

            fn all_mut(&mut self) -> &mut [T] {
                self.$all_mut()
            }
        }
    )*};
}

elements! {
    () Vec<T>, as_slice, as_mut_slice;
    () Box<[T]>, as_ref, as_mut;
    (const N: usize) [T; N], as_slice, as_mut_slice;
    (const N: usize) Box<[T; N]>, as_slice, as_mut_slice;
    () Option<T>, as_slice, as_mut_slice;
}

/// Saves components whose number follows from the configuration.
pub fn save_fixed<E: Elements>(elements: &E, out: &mut Writer<'_>) {
    let elements = elements.all();
    elements.len().write(out);
    for element in elements {
        element.save(out);
    }
}

/// Loads what [`save_fixed`] wrote.
///
/// # Errors
/// [`Error::Length`] when there were more or fewer, and those of the components.
pub fn load_fixed<E: Elements>(elements: &mut E, input: &mut Reader<'_>) -> Result<(), Error> {
    let elements = elements.all_mut();
    if usize::read(input)? != elements.len() {
        return Err(Error::Length);
    }
    for element in elements {
        element.load(input)?;
    }
    Ok(())
}

/// Saves a component that is there or not, as the configuration says.
pub fn save_option<T: State + ?Sized>(component: Option<&T>, out: &mut Writer<'_>) {
    component.is_some().write(out);
    if let Some(component) = component {
        component.save(out);
    }
}

/// Loads what [`save_option`] wrote.
///
/// # Errors
/// [`Error::Length`] when it is there in only one of both.
pub fn load_option<T: State + ?Sized>(
    component: Option<&mut T>,
    input: &mut Reader<'_>,
) -> Result<(), Error> {
    if bool::read(input)? != component.is_some() {
        return Err(Error::Length);
    }
    component.map_or(Ok(()), |component| component.load(input))
}
