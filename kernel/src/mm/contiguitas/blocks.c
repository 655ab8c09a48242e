// SPDX-License-Identifier: GPL-2.0-only
/* Contiguitas: pageblocks change sides. Only the resizer's thread calls what is here. */
#include <linux/kthread.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/page-isolation.h>
#include <linux/sched/mm.h>

#include "../internal.h"
#include "contiguitas.h"

#define CREATE_TRACE_POINTS
#include <trace/events/contiguitas.h>

/* How many blocks of a zone that cannot be emptied may lie on the wrong side of the border. */
static unsigned int skip_blocks = 4;
module_param(skip_blocks, uint, 0644);
MODULE_PARM_DESC(skip_blocks, "blocks of a zone that the border may pass without emptying them");

/*
 * Empty blocks, whose pages of use migrate to elsewhere, and give them to the other side. Only this
 * thread does so, and no allocation waits for it longer than it wants.
 */
static int hand_over(struct zone *zone, unsigned long pfn, unsigned long blocks, enum side to)
{
	unsigned long end = pfn + blocks * pageblock_nr_pages;
	unsigned int noreclaim;
	unsigned long p;
	int error;

	/* Reserves for atomic requests are counted by the page allocator as they come and go. */
	if (get_pageblock_migratetype(pfn_to_page(pfn)) == MIGRATE_HIGHATOMIC)
		return -EBUSY;
	/*
	 * What migrates takes as much of the movable region as it gives back, and nobody else lives
	 * on that region's reserve: it may be used, and reclaim is left to those who wait for it.
	 */
	noreclaim = memalloc_noreclaim_save();
	error = alloc_contig_range(pfn, end, to == MOVABLE ? MIGRATE_UNMOVABLE : MIGRATE_CMA,
				   GFP_KERNEL | __GFP_NOWARN);
	memalloc_noreclaim_restore(noreclaim);
	if (error)
		return error;
	for (p = pfn; p < end; p += pageblock_nr_pages)
		set_pageblock_migratetype(pfn_to_page(p),
					  to == MOVABLE ? MIGRATE_CMA : MIGRATE_UNMOVABLE);
	free_contig_range(pfn, end - pfn);
	resizer_zone(zone)->moved[to] += blocks;
	return 0;
}

/* Whether something in a block was allocated before the page allocator was there: for good. */
static bool is_of_boot(unsigned long pfn)
{
	unsigned long end = pfn + pageblock_nr_pages;

	for (; pfn < end; pfn++)
		if (PageReserved(pfn_to_page(pfn)))
			return true;
	return false;
}

/* What a block is to a resize that would give it to a side. */
enum block { ITS_OWN, TO_MOVE, NOT_OURS };

static enum block block_at(struct zone *zone, unsigned long pfn, enum side to)
{
	unsigned long end = pfn + pageblock_nr_pages;
	struct page *page;
	int type;

	if (!zone_spans_pfn(zone, pfn) || !zone_spans_pfn(zone, end - 1))
		return NOT_OURS;
	/* A hole, or memory that has been unplugged. */
	page = pageblock_pfn_to_page(pfn, end, zone);
	if (!page)
		return NOT_OURS;
	type = get_pageblock_migratetype(page);
	if (is_migrate_isolate(type))
		return NOT_OURS;
	if ((type == MIGRATE_CMA) == (to == MOVABLE))
		return ITS_OWN;
	if ((type == MIGRATE_CMA && contiguitas_in_cma_area(pfn)) || is_of_boot(pfn))
		return NOT_OURS;
	return TO_MOVE;
}

static void remember_held(struct zone *zone, unsigned long pfn, enum side to, int error)
{
	struct resizer_zone *state = resizer_zone(zone);

	state->held++;
	state->last_held = pfn;
	trace_contiguitas_held(pfn, to == UNMOVABLE, error);
	if (state->straggler_end <= state->straggler_start) {
		state->straggler_start = pfn;
		state->straggler_end = pfn + pageblock_nr_pages;
	} else {
		state->straggler_start = min(state->straggler_start, pfn);
		state->straggler_end = max(state->straggler_end, pfn + pageblock_nr_pages);
	}
}

/* Blocks on the wrong side of the border. */
static unsigned int count_stragglers(struct zone *zone)
{
	struct resizer_zone *state = resizer_zone(zone);
	unsigned int count = 0;
	unsigned long pfn;

	for (pfn = state->straggler_start; pfn < state->straggler_end; pfn += pageblock_nr_pages) {
		enum side side = pfn < contiguitas_zone(zone)->border ? UNMOVABLE : MOVABLE;

		if (block_at(zone, pfn, side) == TO_MOVE)
			count++;
	}
	return count;
}

/* At once, where that works: each attempt makes all processors give back what they keep. */
#define CHUNK_BLOCKS 8UL

static unsigned long run_of_blocks(struct zone *zone, unsigned long pfn, long step,
				   unsigned long most, enum side to)
{
	unsigned long blocks = 0;

	while (blocks < most && block_at(zone, pfn, to) == TO_MOVE &&
	       (!blocks || get_pageblock_migratetype(pfn_to_page(pfn)) != MIGRATE_HIGHATOMIC)) {
		blocks++;
		pfn += step;
	}
	return blocks;
}

/*
 * Give blocks next to the border to a side; returns how many it gained. Blocks that cannot be
 * emptied are passed over, as long as few have been, and stay what they are.
 */
unsigned long contiguitas_move_blocks(struct zone *zone, enum side to, unsigned long wanted)
{
	long step = to == UNMOVABLE ? pageblock_nr_pages : -(long)pageblock_nr_pages;
	unsigned long from = contiguitas_zone(zone)->border;
	unsigned long first = ALIGN(zone->zone_start_pfn, pageblock_nr_pages);
	unsigned long last = ALIGN_DOWN(zone_end_pfn(zone), pageblock_nr_pages);
	/* Of the next block, and where the border would be if no more came. */
	unsigned long pfn = to == UNMOVABLE ? from : from - pageblock_nr_pages;
	unsigned long border = from;
	unsigned long gained = 0, chunk = CHUNK_BLOCKS;
	unsigned int skipped = 0, stragglers = count_stragglers(zone);
	int error;

	while (gained < wanted && pfn >= first && pfn < last && !kthread_should_stop()) {
		unsigned long most, run, low;

		if (block_at(zone, pfn, to) != TO_MOVE) {
			pfn += step;
			/* It is on its side now, or nobody's. */
			border += step;
			continue;
		}
		/* Who waits has the first block sooner alone. */
		most = contiguitas_has_waiters() ? 1 : min(chunk, wanted - gained);
		run = run_of_blocks(zone, pfn, step, most, to);
		low = to == UNMOVABLE ? pfn : pfn - (run - 1) * pageblock_nr_pages;
		error = hand_over(zone, low, run, to);
		if (!error) {
			pfn += run * step;
			border = to == UNMOVABLE ? pfn : pfn + pageblock_nr_pages;
			gained += run;
			/* Now and not at the end: waiters get it at once. */
			contiguitas_move_border(zone, border);
			contiguitas_wake_waiters();
			continue;
		}
		if (run > 1) {
			chunk = 1;
			continue;
		}
		remember_held(zone, pfn, to, error);
		skipped++;
		if (stragglers++ >= READ_ONCE(skip_blocks) || error == -ENOMEM || error == -EINTR)
			break;
		pfn += step;
		cond_resched();
	}
	if (border != contiguitas_zone(zone)->border && !skipped)
		contiguitas_move_border(zone, border);
	if (from != contiguitas_zone(zone)->border)
		trace_contiguitas_resize(zone_to_nid(zone), zone_idx(zone), from,
					 contiguitas_zone(zone)->border, wanted);
	return gained;
}

/* Blocks that one round tries again. */
#define SWEEP_BLOCKS 32

/* Give stragglers to the region that they lie in. */
void contiguitas_sweep(struct zone *zone)
{
	struct resizer_zone *state = resizer_zone(zone);
	unsigned long pfn = state->straggler_start, end = state->straggler_end;
	unsigned long first_left = 0, last_left = 0;
	unsigned int tried = 0;

	for (; pfn < end && tried < SWEEP_BLOCKS && !contiguitas_has_waiters();
	     pfn += pageblock_nr_pages) {
		enum side to = pfn < contiguitas_zone(zone)->border ? UNMOVABLE : MOVABLE;

		if (block_at(zone, pfn, to) != TO_MOVE)
			continue;
		tried++;
		if (!hand_over(zone, pfn, 1, to))
			continue;
		if (!first_left)
			first_left = pfn;
		last_left = pfn + pageblock_nr_pages;
	}
	/* What was not reached is next. */
	state->straggler_start = first_left ?: pfn;
	state->straggler_end = pfn < end ? end : last_left;
}

/*
 * Movable pages in the unmovable region go back before that region grows for what they take: a
 * number of pages, from the border down. What is pinned stays.
 */
unsigned long contiguitas_send_back(struct zone *zone, unsigned long wanted)
{
	struct resizer_zone *state = resizer_zone(zone);
	struct migration_target_control target = {
		.nid = zone_to_nid(zone),
		.gfp_mask = GFP_USER | __GFP_MOVABLE | __GFP_NOWARN | __GFP_RETRY_MAYFAIL,
	};
	struct compact_control control = {
		.order = -1,
		.zone = zone,
		.mode = MIGRATE_SYNC,
		.ignore_skip_hint = true,
		.no_set_skip_hint = true,
		.gfp_mask = GFP_KERNEL,
		.alloc_contig = true,
	};
	unsigned long first = ALIGN(zone->zone_start_pfn, pageblock_nr_pages);
	unsigned long pfn = min(state->guest_end, contiguitas_zone(zone)->border);
	unsigned long free = free_pages_of(zone, MOVABLE), low = low_wmark_pages(zone);
	unsigned long sent = 0;
	unsigned int noreclaim;

	/* Else they would come again at once. */
	if (free <= low)
		return 0;
	wanted = min(wanted, free - low);
	noreclaim = memalloc_noreclaim_save();
	INIT_LIST_HEAD(&control.migratepages);
	while (sent < wanted && pfn > first && !(sent && contiguitas_has_waiters()) &&
	       !kthread_should_stop()) {
		unsigned long end = pfn, at;
		bool failed = false;

		pfn -= pageblock_nr_pages;
		if (block_at(zone, pfn, UNMOVABLE) != ITS_OWN)
			continue;
		for (at = pfn; at < end && !failed; at = control.migrate_pfn) {
			unsigned int succeeded = 0;

			/* Where nothing is isolated it may stay what it is. */
			control.migrate_pfn = end;
			if (isolate_migratepages_range(&control, at, end))
				failed = list_empty(&control.migratepages);
			if (list_empty(&control.migratepages))
				continue;
			if (migrate_pages(&control.migratepages, alloc_migration_target, NULL,
					  (unsigned long)&target, control.mode, MR_COMPACTION,
					  &succeeded)) {
				/* Where memory is short, later ones would fail, too. */
				failed = !succeeded;
				putback_movable_pages(&control.migratepages);
			}
			control.nr_migratepages = 0;
			sent += succeeded;
		}
		if (failed) {
			pfn = end;
			break;
		}
		cond_resched();
	}
	memalloc_noreclaim_restore(noreclaim);
	state->guest_end = pfn;
	if (pfn <= first) {
		/* Once more from the border if there were any. */
		state->guest_end = ULONG_MAX;
		state->has_guests = sent;
	}
	state->sent_back += sent;
	/* They lie on per-CPU lists, where nobody who waits for memory finds them. */
	if (sent)
		drain_all_pages(zone);
	return sent;
}
