//! Orders of folios, and numbers by them.

use contigua_units::Order;

/// Orders of folios: 16 KB to 1 MB (Linux has none of 8 KB for anonymous memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders(u16);

impl Orders {
    /// That of the smallest folio.
    pub const SMALLEST: Order = Order::new(2);
    /// Number of orders.
    pub const COUNT: usize = (Order::HUGE_2M.get() - Self::SMALLEST.get()) as usize;

    /// All orders.
    pub fn all() -> impl Iterator<Item = Order> {
        (Self::SMALLEST.get()..Order::HUGE_2M.get()).map(Order::new)
    }

    /// Its members, the largest one first.
    pub fn largest_first(self) -> impl Iterator<Item = Order> {
        let orders = (Self::SMALLEST.get()..Order::HUGE_2M.get()).rev();
        orders
            .filter(move |order| self.0 >> order & 1 == 1)
            .map(Order::new)
    }
}

impl FromIterator<Order> for Orders {
    /// # Panics
    /// When there is no folio of an order.
    fn from_iter<T: IntoIterator<Item = Order>>(orders: T) -> Self {
        let bits = orders.into_iter().map(|order| {
            assert!(order >= Self::SMALLEST && order < Order::HUGE_2M);
            1 << order.get()
        });
        Self(bits.fold(0, std::ops::BitOr::bitor))
    }
}

/// Numbers of folios, by order from 2 (16 KB) to 8 (1 MB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct FolioCounts([u64; Orders::COUNT]);

impl FolioCounts {
    pub(crate) fn of(&mut self, order: Order) -> &mut u64 {
        &mut self.0[usize::from(order.get() - Orders::SMALLEST.get())]
    }

    /// The numbers, smallest order first.
    #[must_use]
    pub const fn get(&self) -> &[u64; Orders::COUNT] {
        &self.0
    }
}
