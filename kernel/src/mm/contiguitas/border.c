// SPDX-License-Identifier: GPL-2.0-only
/*
 * Contiguitas: where the border between unmovable and movable memory is, and what the page allocator
 * asks about it.
 *
 * See Documentation/admin-guide/mm/contiguitas.rst. Of Contiguitas (ISCA 2023) this folder has the
 * half that an operating system can do alone: confinement (section 3.1), placement away from the
 * border (3.2) and resizing (3.3).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/cma.h>
#include <linux/compaction.h>
#include <linux/memblock.h>
#include <linux/memory.h>
#include <linux/moduleparam.h>
#include <linux/page-isolation.h>

#include "../internal.h"
#include "contiguitas.h"

DEFINE_STATIC_KEY_FALSE(contiguitas_key);
struct contiguitas_zone contiguitas_zones[MAX_NUMNODES][MAX_NR_ZONES] __read_mostly;

/* Of initial unmovable memory: a number of bytes, or a share of all memory. */
static u64 initial_bytes __initdata;
static unsigned int initial_percent __initdata;

/* Share of a region, next to the border, that is used last. */
static unsigned int bias_percent = 10;
module_param(bias_percent, uint, 0644);
MODULE_PARM_DESC(bias_percent, "share of a region, next to the border, that is used last");

/* Frames that only 16 MB or less of memory may have are left alone, and ZONE_MOVABLE has no need. */
static bool takes_part(struct zone *zone)
{
	if (zone_idx(zone) == ZONE_NORMAL)
		return true;
#ifdef CONFIG_ZONE_DMA32
	if (zone_idx(zone) == ZONE_DMA32)
		return true;
#endif
	return false;
}

/* Move the border; the zone's lock is held, or nothing else runs yet. */
static void set_border(struct zone *zone, unsigned long border)
{
	struct contiguitas_zone *state = border_of(zone);
	unsigned long below = border - zone->zone_start_pfn;
	unsigned long above = zone_end_pfn(zone) > border ? zone_end_pfn(zone) - border : 0;
	unsigned int percent = min(READ_ONCE(bias_percent), 100U);

	WRITE_ONCE(state->bias_start, border - below / 100 * percent);
	WRITE_ONCE(state->bias_end, border + above / 100 * percent);
	WRITE_ONCE(state->border, border);
	set_bit(CONTIGUITAS_BORDER, &zone->flags);
}

/* Move the border of a zone in use. */
void contiguitas_move_border(struct zone *zone, unsigned long border)
{
	unsigned long flags;

	spin_lock_irqsave(&zone->lock, flags);
	set_border(zone, border);
	spin_unlock_irqrestore(&zone->lock, flags);
}

/*
 * contiguitas=on, contiguitas=512M or contiguitas=10%: how much memory is for unmovable allocations
 * at first, beyond what the kernel has taken by then.
 */
static int __init contiguitas_setup(char *arg)
{
	char *end;

	if (!arg)
		return -EINVAL;
	if (!strcmp(arg, "off"))
		return 0;
	if (!strcmp(arg, "on")) {
		initial_percent = 6;
	} else {
		u64 number = memparse(arg, &end);

		if (*end == '%' && number > 0 && number < 100) {
			initial_percent = number;
		} else if (*end == '\0' && number >= SZ_1M) {
			initial_bytes = number;
		} else {
			pr_err("contiguitas=%s is neither on, off, a size nor a share; off\n", arg);
			return -EINVAL;
		}
	}
	static_branch_enable(&contiguitas_key);
	return 0;
}
early_param("contiguitas", contiguitas_setup);

/*
 * What is allocated before the page allocator is there stays for good, the memory map above all. It
 * goes to the low end, which is the far end of the unmovable region. Not earlier: architectures
 * choose the direction themselves until they know which memory may be unplugged.
 */
void __init __contiguitas_boot(void)
{
	memblock_set_bottom_up(true);
}

/*
 * How many bytes of a zone are free, of a number that is enough, and the frame behind the last of
 * them. What is free now, the page allocator will have.
 */
static u64 __init free_in_zone(struct zone *zone, u64 enough, unsigned long *end_pfn)
{
	phys_addr_t start, end;
	u64 sum = 0, i;

	for_each_free_mem_range(i, zone_to_nid(zone), MEMBLOCK_NONE, &start, &end, NULL) {
		start = max_t(phys_addr_t, start, PFN_PHYS(zone->zone_start_pfn));
		end = min_t(phys_addr_t, end, PFN_PHYS(zone_end_pfn(zone)));
		if (start >= end)
			continue;
		if (sum + (end - start) >= enough) {
			*end_pfn = PHYS_PFN(start + (enough - sum));
			return enough;
		}
		sum += end - start;
		*end_pfn = PHYS_PFN(end);
	}
	return sum;
}

/* Whether a page's description is there; others get their block's type when they get theirs. */
static bool __init has_page(struct zone *zone, unsigned long pfn)
{
#ifdef CONFIG_DEFERRED_STRUCT_PAGE_INIT
	if (pfn >= zone->zone_pgdat->first_deferred_pfn)
		return false;
#endif
	return pfn_valid(pfn);
}

/* Blocks that have their types already change them: nothing in them is free yet. */
static void __init raise_border(struct zone *zone, unsigned long border)
{
	unsigned long pfn = contiguitas_zone(zone)->border ?: border;

	for (; pfn < border; pfn += pageblock_nr_pages)
		if (has_page(zone, pfn))
			set_pageblock_migratetype(pfn_to_page(pfn), MIGRATE_UNMOVABLE);
	if (border > contiguitas_zone(zone)->border)
		set_border(zone, border);
}

/*
 * Called when blocks are about to get their types, and again when the first page is about to be
 * free: what boot takes in between, bounce buffers above all, comes from the unmovable region, and
 * would leave it with next to nothing before there is a thread that moves the border.
 */
void __init __contiguitas_init_borders(void)
{
	static bool is_again __initdata;
	unsigned long end_pfn;
	struct zone *zone;
	u64 all = 0, wanted;

	for_each_populated_zone(zone)
		if (takes_part(zone))
			all += free_in_zone(zone, U64_MAX, &end_pfn);
	if (all < SZ_256M && !is_again) {
		pr_warn("off: needs 256 MB of memory\n");
		static_branch_disable(&contiguitas_key);
		return;
	}
	is_again = true;
	wanted = initial_bytes ?: max_t(u64, div_u64(all * initial_percent, 100), SZ_64M);
	wanted = min(wanted, all / 2);
	for_each_populated_zone(zone) {
		u64 here;

		if (!takes_part(zone))
			continue;
		end_pfn = zone->zone_start_pfn;
		here = free_in_zone(zone, U64_MAX, &end_pfn);
		end_pfn = zone->zone_start_pfn;
		/* Every zone has its share. */
		free_in_zone(zone, mul_u64_u64_div_u64(wanted, here, all) + 1, &end_pfn);
		raise_border(zone, ALIGN(end_pfn, pageblock_nr_pages));
	}
}

int __contiguitas_block_type(struct page *page, int migratetype)
{
	unsigned long border = READ_ONCE(contiguitas_zone(page_zone(page))->border);

	if (!border)
		return migratetype;
	return page_to_pfn(page) < border ? MIGRATE_UNMOVABLE : MIGRATE_CMA;
}

struct frames {
	unsigned long start, end;
};

static int overlaps(struct cma *cma, void *data)
{
	struct frames *range = data;
	unsigned long start = PHYS_PFN(cma_get_base(cma));
	unsigned long end = start + (cma_get_size(cma) >> PAGE_SHIFT);

	return start < range->end && range->start < end;
}

/* Whether a block belongs to a CMA area, which stays what it is wherever the border is. */
bool contiguitas_in_cma_area(unsigned long pfn)
{
	struct frames range = { pfn, pfn + pageblock_nr_pages };

	return cma_for_each_area(overlaps, &range);
}

bool __contiguitas_movable_block(struct page *page)
{
	unsigned long border = READ_ONCE(contiguitas_zone(page_zone(page))->border);
	unsigned long pfn = pageblock_start_pfn(page_to_pfn(page));

	return border && pfn >= border && !contiguitas_in_cma_area(pfn);
}

/*
 * Movable pages in the unmovable region pollute no block that is not polluted, but only single
 * pages are found there. Kernel threads take none of its reserve: one of them moves the border.
 */
bool contiguitas_spills(struct zone *zone, unsigned int order)
{
	unsigned long floor = current->flags & PF_KTHREAD ? low_wmark_pages(zone) :
			      READ_ONCE(resizer_zone(zone)->spill_floor);

	return !order && test_bit(CONTIGUITAS_SPILLS, &zone->flags) &&
	       free_pages_of(zone, UNMOVABLE) > floor;
}

bool __contiguitas_has_block(struct zone *zone, unsigned int order)
{
	for (; order < ARRAY_SIZE(zone->free_area); order++) {
		struct free_area *area = &zone->free_area[order];

		if (READ_ONCE(area->nr_free) && !free_area_empty(area, MIGRATE_CMA))
			return true;
	}
	return false;
}

unsigned int __contiguitas_alloc_flags(void)
{
	return ALLOC_CMA;
}

bool contiguitas_compaction_ready(struct zone *zone, unsigned int order, gfp_t gfp,
				  int highest_zoneidx)
{
	bool movable = gfp_migratetype(gfp) == MIGRATE_MOVABLE;

	if (zone_watermark_ok(zone, order, min_wmark_pages(zone), highest_zoneidx,
			      movable ? ALLOC_CMA : 0))
		return true;
	/* Only movable memory can be compacted. */
	return movable && zone_watermark_ok(zone, 0, high_wmark_pages(zone) + compact_gap(order),
					    highest_zoneidx, ALLOC_CMA);
}

/* Memory that comes later lies in the movable region; a zone that had none gets a border now. */
static int memory_callback(struct notifier_block *self, unsigned long action, void *data)
{
	struct memory_notify *notify = data;
	struct zone *zone;

	if (action != MEM_GOING_ONLINE)
		return NOTIFY_OK;
	zone = page_zone(pfn_to_page(notify->start_pfn));
	if (takes_part(zone))
		contiguitas_move_border(zone, contiguitas_zone(zone)->border ?:
			    ALIGN(zone->zone_start_pfn, pageblock_nr_pages));
	return NOTIFY_OK;
}

void __init contiguitas_watch_hotplug(void)
{
	hotplug_memory_notifier(memory_callback, 0);
}
