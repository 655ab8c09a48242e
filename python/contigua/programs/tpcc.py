"""Transactions after TPC-C: an order-entry company's tables, and what its terminals ask, as SQL.

Tables, row counts, the mix of transactions and the distribution of what they touch are those of the
TPC Benchmark C, revision 5.11; the statements are our own. Everything is drawn from seeds, and
nobody waits for keys or thinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

#: Rows (clause 1.2.1): items; districts of a warehouse; customers of a district, each with an order
#: at the start; orders of a district that are not delivered yet.
ITEMS, DISTRICTS, CUSTOMERS, UNDELIVERED = 100_000, 10, 3_000, 900
#: Shares of the transactions, in percent (clause 5.2.3).
MIX = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}
#: A last name has three of these, by the digits of a number below 1,000 (clause 4.3.2.3).
SYLLABLES = ("BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING")
#: Last names, and customers of a district with each of them.
NAMES, NAMESAKES = 1_000, 3

SCHEMA = """
create table warehouse (
  w_id int primary key, w_name char(10), w_address varchar(80), w_tax decimal(4,4),
  w_ytd decimal(12,2)) engine=InnoDB;
create table district (
  d_w_id int, d_id int, d_name char(10), d_address varchar(80), d_tax decimal(4,4),
  d_ytd decimal(12,2), d_next_o_id int, primary key (d_w_id, d_id)) engine=InnoDB;
create table customer (
  c_w_id int, c_d_id int, c_id int, c_first varchar(16), c_last varchar(16),
  c_address varchar(120), c_since datetime, c_credit char(2), c_discount decimal(4,4),
  c_balance decimal(12,2), c_ytd_payment decimal(12,2), c_payment_cnt int, c_delivery_cnt int,
  c_data varchar(500), primary key (c_w_id, c_d_id, c_id),
  key name (c_w_id, c_d_id, c_last, c_first)) engine=InnoDB;
create table history (
  h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date datetime,
  h_amount decimal(6,2), h_data varchar(24)) engine=InnoDB;
create table orders (
  o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d datetime, o_carrier_id int,
  o_ol_cnt int, o_all_local int, primary key (o_w_id, o_d_id, o_id),
  key customer (o_w_id, o_d_id, o_c_id, o_id)) engine=InnoDB;
create table new_order (
  no_w_id int, no_d_id int, no_o_id int, primary key (no_w_id, no_d_id, no_o_id)) engine=InnoDB;
create table order_line (
  ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int,
  ol_delivery_d datetime, ol_quantity int, ol_amount decimal(6,2), ol_dist_info char(24),
  primary key (ol_w_id, ol_d_id, ol_o_id, ol_number)) engine=InnoDB;
create table item (
  i_id int primary key, i_im_id int, i_name varchar(24), i_price decimal(5,2),
  i_data varchar(50)) engine=InnoDB;
create table stock (
  s_w_id int, s_i_id int, s_quantity int, s_dist char(240), s_ytd int, s_order_cnt int,
  s_remote_cnt int, s_data varchar(50), primary key (s_w_id, s_i_id)) engine=InnoDB;
insert into item select seq, crc32(seq) % 10000, concat('item', seq), 1 + crc32(seq) % 9900 / 100,
  left(repeat(md5(seq), 2), 26 + seq % 25) from seq_1_to_{items};
"""

WAREHOUSE = """
insert into warehouse values ({w}, 'w{w}', repeat('a', 60), 0.1, 300000);
insert into stock select {w}, seq, 10 + crc32(seq * {w}) % 91,
  left(repeat(md5(seq), 8), 240), 0, 0, 0,
  left(repeat(md5(seq + {w}), 2), 26 + seq % 25) from seq_1_to_{items};
"""

# 7,919 is prime: each customer has one order.
DISTRICT = """
insert into district values ({w}, {d}, 'd{d}', repeat('a', 60), 0.1, 30000, {customers} + 1);
insert into customer select {w}, {d}, seq, left(md5(seq), 12), concat(
  elt(1 + n div 100, {syllables}), elt(1 + n div 10 % 10, {syllables}),
  elt(1 + n % 10, {syllables})),
  repeat('a', 90), now(), if(seq % 10 = 0, 'BC', 'GC'), seq % 5000 / 10000, -10, 10, 1, 0,
  left(repeat(md5(seq), 16), 300 + seq % 200)
  from (select seq, (seq - 1) % {names} n from seq_1_to_{customers}) s;
insert into history select seq, {d}, {w}, {d}, {w}, now(), 10, 'start' from seq_1_to_{customers};
insert into orders select {w}, {d}, seq, seq * 7919 % {customers} + 1, now(),
  if(seq > {delivered}, null, 1 + seq % 10), 5 + crc32(seq) % 11, 1 from seq_1_to_{customers};
insert into order_line select o_w_id, o_d_id, o_id, seq, 1 + crc32(o_id * 16 + seq) % {items},
  o_w_id, now(), 5, crc32(seq) % 999999 / 100, left(md5(seq), 24)
  from orders join seq_1_to_15 on seq <= o_ol_cnt where o_w_id = {w} and o_d_id = {d};
insert into new_order select {w}, {d}, seq from seq_1_to_{customers} where seq > {delivered};
"""

NEW_ORDER = """
select w_tax into @w from warehouse where w_id = {w};
select d_tax, d_next_o_id into @d, @o from district where d_w_id = {w} and d_id = {d} for update;
update district set d_next_o_id = @o + 1 where d_w_id = {w} and d_id = {d};
select c_discount, c_last, c_credit from customer
  where c_w_id = {w} and c_d_id = {d} and c_id = {c};
insert into orders values ({w}, {d}, @o, {c}, now(), null, {count}, 1);
insert into new_order values ({w}, {d}, @o);
"""

LINE = """
select i_price, i_name, i_data into @p, @n, @t from item where i_id = {item};
select s_quantity, left(s_dist, 24), s_data into @q, @i, @t from stock
  where s_w_id = {other} and s_i_id = {item} for update;
update stock set s_quantity = if(@q >= {quantity} + 10, @q, @q + 91) - {quantity},
  s_ytd = s_ytd + {quantity}, s_order_cnt = s_order_cnt + 1,
  s_remote_cnt = s_remote_cnt + ({other} <> {w}) where s_w_id = {other} and s_i_id = {item};
insert into order_line values
  ({w}, {d}, @o, {number}, {item}, {other}, null, {quantity}, {quantity} * @p, @i);
"""

BY_NUMBER = """
select c_id, c_balance, c_credit into @c, @b, @k from customer
  where c_w_id = {other} and c_d_id = {d} and c_id = {c};
"""

# The middle one of its namesakes (clause 2.5.2.2).
BY_NAME = """
select c_id, c_balance, c_credit into @c, @b, @k from customer
  where c_w_id = {other} and c_d_id = {d} and c_last = '{last}' order by c_first limit 1, 1;
"""

PAYMENT = """
update warehouse set w_ytd = w_ytd + {amount} where w_id = {w};
select w_name, w_address from warehouse where w_id = {w};
update district set d_ytd = d_ytd + {amount} where d_w_id = {w} and d_id = {d};
select d_name, d_address from district where d_w_id = {w} and d_id = {d};
{customer}
update customer set c_balance = c_balance - {amount}, c_ytd_payment = c_ytd_payment + {amount},
  c_payment_cnt = c_payment_cnt + 1 where c_w_id = {other} and c_d_id = {d} and c_id = @c;
insert into history values (@c, {d}, {other}, {d}, {w}, now(), {amount}, 'paid');
"""

ORDER_STATUS = """
{customer}
select o_id, o_carrier_id, o_entry_d into @o, @x, @y from orders
  where o_w_id = {w} and o_d_id = {d} and o_c_id = @c order by o_id desc limit 1;
select ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d from order_line
  where ol_w_id = {w} and ol_d_id = {d} and ol_o_id = @o;
"""

# Of each district.
DELIVERY = """
select min(no_o_id) into @o from new_order where no_w_id = {w} and no_d_id = {d} for update;
delete from new_order where no_w_id = {w} and no_d_id = {d} and no_o_id = @o;
select o_c_id into @c from orders where o_w_id = {w} and o_d_id = {d} and o_id = @o;
update orders set o_carrier_id = {carrier} where o_w_id = {w} and o_d_id = {d} and o_id = @o;
update order_line set ol_delivery_d = now() where ol_w_id = {w} and ol_d_id = {d} and ol_o_id = @o;
select coalesce(sum(ol_amount), 0) into @s from order_line
  where ol_w_id = {w} and ol_d_id = {d} and ol_o_id = @o;
update customer set c_balance = c_balance + @s, c_delivery_cnt = c_delivery_cnt + 1
  where c_w_id = {w} and c_d_id = {d} and c_id = @c;
"""

STOCK_LEVEL = """
select d_next_o_id into @o from district where d_w_id = {w} and d_id = {d};
select count(distinct s_i_id) from order_line join stock on s_i_id = ol_i_id
  where s_w_id = {w} and ol_w_id = {w} and ol_d_id = {d} and ol_o_id between @o - 20 and @o - 1
  and s_quantity < {least};
"""


@dataclass(frozen=True)
class Company:
    """Size of the tables.

    Attributes
    ----------
    warehouses
        Warehouses; each has about 100 MB at the standard's sizes.
    divisor
        What items, customers and orders are divided by; 1 for the standard's.
    """

    warehouses: int
    divisor: int = 1

    @property
    def items(self) -> int:
        """Items, and stocks of each warehouse."""
        return ITEMS // self.divisor

    @property
    def customers(self) -> int:
        """Customers of a district."""
        return CUSTOMERS // self.divisor

    @property
    def names(self) -> int:
        """Last names of the customers of a district."""
        return self.customers // NAMESAKES

    @property
    def pool_mib(self) -> int:
        """Size of a buffer pool that holds all tables and what is added to them, in MiB."""
        return 64 + 160 * self.warehouses // self.divisor

    def tables(self) -> Iterator[str]:
        """Return SQL that makes and fills the tables."""
        values = {
            "items": self.items,
            "customers": self.customers,
            "names": self.names,
            "delivered": self.customers - UNDELIVERED // self.divisor,
            "syllables": ", ".join(f"'{one}'" for one in SYLLABLES),
        }
        yield SCHEMA.format(**values)
        for w in range(1, self.warehouses + 1):
            yield WAREHOUSE.format(w=w, **values)
            for d in range(1, DISTRICTS + 1):
                yield DISTRICT.format(w=w, d=d, **values)


class Terminal:
    """A terminal of a warehouse, which asks for transactions.

    Parameters
    ----------
    company
        The tables.
    number
        From 0 on: terminals are spread over the warehouses, and each draws other transactions.
    """

    def __init__(self, company: Company, number: int) -> None:
        self.company = company
        self.home = number % company.warehouses + 1
        self.random = Random(number)

    def transactions(self, count: int) -> str:
        """Return the statements of the next transactions."""
        asked = {
            "new_order": self._new_order,
            "payment": self._payment,
            "order_status": self._order_status,
            "delivery": self._delivery,
            "stock_level": self._stock_level,
        }
        drawn = self.random.choices(list(MIX), list(MIX.values()), k=count)
        return "".join(f"start transaction;{asked[name]()}" for name in drawn)

    def _between(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def _uneven(self, most: int, spread: int) -> int:
        """Draw from 1 to `most`, some more often than others (NURand, clause 2.1.6)."""
        drawn = self._between(0, min(spread, most)) | self._between(1, most)
        return drawn % most + 1

    def _at(self, remote: int = 0) -> dict[str, int]:
        """Draw a district and, with a probability in percent, another warehouse."""
        others = self.company.warehouses - 1
        other = self.home
        if others > 0 and self._between(1, 100) <= remote:
            other = (self.home + self._between(0, others - 1)) % (others + 1) + 1
        return {"w": self.home, "d": self._between(1, DISTRICTS), "other": other}

    def _customer(self, at: dict[str, int]) -> str:
        """Draw a customer, six of ten by the last name (clause 2.5.1.2)."""
        if self._between(1, 100) > 60:
            return BY_NUMBER.format(**at, c=self._uneven(self.company.customers, 1023))
        name = self._uneven(self.company.names, 255) - 1
        last = "".join(SYLLABLES[name // part % 10] for part in (100, 10, 1))
        return BY_NAME.format(**at, last=last)

    def _new_order(self) -> str:
        at, count = self._at(), self._between(5, 15)
        customer = self._uneven(self.company.customers, 1023)
        text = NEW_ORDER.format(**at, c=customer, count=count)
        # By number, so that no two terminals wait for each other's items.
        items = sorted(self._uneven(self.company.items, 8191) for _ in range(count))
        for number, item in enumerate(items, 1):
            from_where = at | {"other": self._at(remote=1)["other"]}
            quantity = self._between(1, 10)
            text += LINE.format(**from_where, number=number, item=item, quantity=quantity)
        # One of a hundred asks for an item that does not exist (clause 2.4.1.4).
        return text + ("rollback;\n" if self._between(1, 100) == 1 else "commit;\n")

    def _payment(self) -> str:
        at = self._at(remote=15)
        amount = self._between(100, 500_000) / 100
        return PAYMENT.format(**at, amount=amount, customer=self._customer(at)) + "commit;\n"

    def _order_status(self) -> str:
        at = self._at()
        return ORDER_STATUS.format(**at, customer=self._customer(at)) + "commit;\n"

    def _delivery(self) -> str:
        carrier = self._between(1, 10)
        districts = range(1, DISTRICTS + 1)
        parts = (DELIVERY.format(w=self.home, d=d, carrier=carrier) for d in districts)
        return "".join(parts) + "commit;\n"

    def _stock_level(self) -> str:
        return STOCK_LEVEL.format(**self._at(), least=self._between(10, 20)) + "commit;\n"
