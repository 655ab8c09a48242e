/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Contiguitas: unmovable memory stays on one side of a border.
 *
 * Each zone that takes part has a border, a page frame number at the start of a pageblock. Below it
 * lies the unmovable region; above it, the movable region, whose pageblocks are of the type
 * MIGRATE_CMA, so that nothing but movable requests can use them and long-term pins leave them.
 * Movable requests use nothing else in such a zone. A kernel thread moves the border.
 *
 * What the page allocator calls is here. Each costs a patched-out branch unless the kernel was
 * booted with contiguitas=.
 *
 * From K. Zhao et al., "Contiguitas: The Pursuit of Physical Memory Contiguity in Datacenters",
 * ISCA 2023, section 3.
 */
#ifndef _LINUX_CONTIGUITAS_H
#define _LINUX_CONTIGUITAS_H

#include <linux/bitops.h>
#include <linux/jump_label.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/types.h>
#include <linux/vmstat.h>

#ifdef CONFIG_CONTIGUITAS

DECLARE_STATIC_KEY_FALSE(contiguitas_key);

/**
 * struct contiguitas_zone - the border of a zone
 * @border: first frame of the movable region; 0 where the zone takes no part
 * @bias_start: first frame of the unmovable region's share that is used last
 * @bias_end: first frame above the movable region's share that is used last
 *
 * Written by one task at a time, under the zone's lock.
 */
struct contiguitas_zone {
	unsigned long border;
	unsigned long bias_start;
	unsigned long bias_end;
};

/* Bits of a zone's flags, from the end that others do not use: each allocation asks for them. */
enum contiguitas_zone_flags {
	/* The zone has a border. */
	CONTIGUITAS_BORDER = BITS_PER_LONG - 1,
	/* The movable region is full, the unmovable one has room, and the border cannot move. */
	CONTIGUITAS_SPILLS = BITS_PER_LONG - 2,
};

extern struct contiguitas_zone contiguitas_zones[MAX_NUMNODES][MAX_NR_ZONES];

static inline const struct contiguitas_zone *contiguitas_zone(struct zone *zone)
{
	return &contiguitas_zones[zone_to_nid(zone)][zone_idx(zone)];
}

/* Whether a zone has a border. */
static inline bool contiguitas_manages(struct zone *zone)
{
	return static_branch_unlikely(&contiguitas_key) &&
	       test_bit(CONTIGUITAS_BORDER, &zone->flags);
}

/* Whether a request for movable memory may use nothing of a zone but its movable region. */
static inline bool contiguitas_confines(struct zone *zone, bool movable)
{
	return movable && contiguitas_manages(zone);
}

/* Whether movable requests look into CMA areas first: where the movable region is of their type. */
static inline bool contiguitas_prefers_cma(struct zone *zone)
{
	return contiguitas_manages(zone) || zone_page_state(zone, NR_FREE_CMA_PAGES) >
						    zone_page_state(zone, NR_FREE_PAGES) / 2;
}

/* Whether a movable request that the movable region cannot serve may use the other one. */
bool contiguitas_spills(struct zone *zone, unsigned int order);

/*
 * Free pages of a zone that a movable request may not use; others are told by the CMA rules. A call
 * would cost every watermark check the saving of registers. For the moments in which one count is
 * ahead of the other, less than none does no harm.
 */
static inline long contiguitas_unusable(struct zone *zone, unsigned int order, bool movable)
{
	long free;

	if (!contiguitas_confines(zone, movable))
		return 0;
	free = atomic_long_read(&zone->vm_stat[NR_FREE_PAGES]) -
	       atomic_long_read(&zone->vm_stat[NR_FREE_CMA_PAGES]);
	/* Both sides have one reserve then, and it lies where unmovable requests have theirs. */
	if (unlikely(test_bit(CONTIGUITAS_SPILLS, &zone->flags)) && !order)
		return 0;
	return free;
}

bool __contiguitas_has_block(struct zone *zone, unsigned int order);

/*
 * Whether a zone has a free block for a movable request of higher order. While memory is plenty it
 * has one of the highest.
 */
static inline bool contiguitas_has_block(struct zone *zone, unsigned int order)
{
	const struct free_area *highest = &zone->free_area[ARRAY_SIZE(zone->free_area) - 1];

	return !list_empty(&highest->free_list[MIGRATE_CMA]) ||
	       __contiguitas_has_block(zone, order);
}

/*
 * Whether a free block goes to the tail of its list, to be used last: near the border it does. At
 * boot the movable region's lists begin at its far end.
 */
static inline bool contiguitas_to_tail(struct zone *zone, unsigned long pfn, bool to_tail)
{
	const struct contiguitas_zone *state;

	if (!static_branch_unlikely(&contiguitas_key))
		return to_tail;
	state = contiguitas_zone(zone);
	if (pfn >= state->bias_start && pfn < state->bias_end)
		return true;
	if (unlikely(system_state < SYSTEM_RUNNING) && state->border && pfn >= state->border)
		return false;
	return to_tail;
}

int __contiguitas_block_type(struct page *page, int migratetype);
bool __contiguitas_movable_block(struct page *page);
void __contiguitas_boot(void);
void __contiguitas_init_borders(void);
void __contiguitas_stall_begin(int migratetype);
void __contiguitas_stall_end(int migratetype);
bool __contiguitas_relieve(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype);
bool __contiguitas_spare(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype);
bool __contiguitas_last_resort(struct zone *zone, gfp_t gfp, unsigned int order,
			       int migratetype);
bool __contiguitas_balanced(struct zone *zone, unsigned int order, unsigned long mark,
			    int highest_zoneidx);
unsigned int __contiguitas_alloc_flags(void);
bool contiguitas_compaction_ready(struct zone *zone, unsigned int order, gfp_t gfp,
				  int highest_zoneidx);

/* The type that a block gets where MIGRATE_MOVABLE is asked for: that of its region. */
static inline int contiguitas_block_type(struct page *page, int migratetype)
{
	if (static_branch_unlikely(&contiguitas_key) && migratetype == MIGRATE_MOVABLE)
		return __contiguitas_block_type(page, migratetype);
	return migratetype;
}

/* Whether a block is of a CMA area, and not of a movable region, whose blocks have the same type. */
static inline bool contiguitas_is_cma_page(struct page *page)
{
	if (!is_migrate_cma_page(page))
		return false;
	return !static_branch_unlikely(&contiguitas_key) || !__contiguitas_movable_block(page);
}

/* What is allocated from now on, before the page allocator is there, lies low. */
static inline void contiguitas_boot(void)
{
	if (static_branch_unlikely(&contiguitas_key))
		__contiguitas_boot();
}

/* Decide where the borders are, before the first page is free. */
static inline void contiguitas_init_borders(void)
{
	if (static_branch_unlikely(&contiguitas_key))
		__contiguitas_init_borders();
}

/* A task begins to wait for memory of a kind. */
static inline void contiguitas_stall_begin(int migratetype)
{
	if (static_branch_unlikely(&contiguitas_key))
		__contiguitas_stall_begin(migratetype);
}

/* It has waited. */
static inline void contiguitas_stall_end(int migratetype)
{
	if (static_branch_unlikely(&contiguitas_key))
		__contiguitas_stall_end(migratetype);
}

/* Before direct reclaim: whether the region that must serve a request has grown. May sleep. */
static inline bool contiguitas_relieve(struct zone *zone, gfp_t gfp, unsigned int order,
				       int migratetype)
{
	return static_branch_unlikely(&contiguitas_key) &&
	       __contiguitas_relieve(zone, gfp, order, migratetype);
}

/* After direct reclaim that freed nothing: whether the movable region has grown. May sleep. */
static inline bool contiguitas_spare(struct zone *zone, gfp_t gfp, unsigned int order,
				     int migratetype)
{
	return static_branch_unlikely(&contiguitas_key) &&
	       __contiguitas_spare(zone, gfp, order, migratetype);
}

/* The same before a task is killed, when the border moves even though it would rather not. */
static inline bool contiguitas_last_resort(struct zone *zone, gfp_t gfp, unsigned int order,
					   int migratetype)
{
	return static_branch_unlikely(&contiguitas_key) &&
	       __contiguitas_last_resort(zone, gfp, order, migratetype);
}

/* Whether background reclaim can stop. The border takes care of the unmovable region. */
static inline bool contiguitas_balanced(struct zone *zone, unsigned int order,
					unsigned long mark, int highest_zoneidx)
{
	if (contiguitas_manages(zone))
		return __contiguitas_balanced(zone, order, mark, highest_zoneidx);
	return zone_watermark_ok_safe(zone, order, mark, highest_zoneidx);
}

/* Allocation flags by which watermarks are of the movable region, where there is one. */
static inline unsigned int contiguitas_alloc_flags(struct zone *zone)
{
	return contiguitas_manages(zone) ? __contiguitas_alloc_flags() : 0;
}

/* Allocation flags that a movable request needs, so that it is known for one. */
static inline unsigned int contiguitas_request_flags(gfp_t gfp)
{
	if (static_branch_unlikely(&contiguitas_key) && gfp_migratetype(gfp) == MIGRATE_MOVABLE)
		return __contiguitas_alloc_flags();
	return 0;
}

/*
 * Whether reclaim for a request of higher order can stop. Reclaim empties the movable region: for an
 * unmovable request it never gives a block.
 */
static inline bool contiguitas_reclaimed_enough(struct zone *zone, unsigned int order, gfp_t gfp,
						int highest_zoneidx)
{
	return contiguitas_manages(zone) &&
	       (gfp_migratetype(gfp) != MIGRATE_MOVABLE ||
		contiguitas_compaction_ready(zone, order, gfp, highest_zoneidx));
}

#else /* !CONFIG_CONTIGUITAS */

#define contiguitas_manages(zone) false
#define contiguitas_confines(zone, movable) false
#define contiguitas_prefers_cma(zone) \
	(zone_page_state(zone, NR_FREE_CMA_PAGES) > zone_page_state(zone, NR_FREE_PAGES) / 2)
#define contiguitas_spills(zone, order) false
#define contiguitas_unusable(zone, order, movable) 0
#define contiguitas_has_block(zone, order) false
#define contiguitas_to_tail(zone, pfn, to_tail) (to_tail)
#define contiguitas_block_type(page, migratetype) (migratetype)
#define contiguitas_is_cma_page(page) is_migrate_cma_page(page)
#define contiguitas_boot() do { } while (0)
#define contiguitas_init_borders() do { } while (0)
#define contiguitas_stall_begin(migratetype) do { } while (0)
#define contiguitas_stall_end(migratetype) do { } while (0)
#define contiguitas_relieve(zone, gfp, order, migratetype) false
#define contiguitas_spare(zone, gfp, order, migratetype) false
#define contiguitas_last_resort(zone, gfp, order, migratetype) false
#define contiguitas_balanced zone_watermark_ok_safe
#define contiguitas_alloc_flags(zone) 0
#define contiguitas_request_flags(gfp) 0
#define contiguitas_compaction_ready(zone, order, gfp, highest_zoneidx) false
#define contiguitas_reclaimed_enough(zone, order, gfp, highest_zoneidx) false

#endif /* CONFIG_CONTIGUITAS */
#endif /* _LINUX_CONTIGUITAS_H */
