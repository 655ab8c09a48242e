// SPDX-License-Identifier: GPL-2.0-only
/*
 * Contiguitas: when the border moves, by the thread that moves it, and how requests wait for that.
 *
 * The paper does not publish how much memory a resize moves; the rule here is a proportional one,
 * described at wanted_blocks().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/freezer.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/sched/clock.h>
#include <linux/swap.h>
#include <linux/sysfs.h>
#include <linux/wait.h>

#include "../internal.h"
#include "contiguitas.h"

#include <trace/events/contiguitas.h>

/* Pressure from which the border moves, in percent of time. */
static unsigned int pressure_percent = 1;
module_param(pressure_percent, uint, 0644);
MODULE_PARM_DESC(pressure_percent, "stall time (of 10 s) from which a region grows");

/* The most that one resize moves, in percent of a zone. */
static unsigned int step_percent = 2;
module_param(step_percent, uint, 0644);
MODULE_PARM_DESC(step_percent, "the most that one resize moves, in percent of the zone");

/* The least unmovable memory of a zone, in percent. */
static unsigned int unmovable_min_percent = 1;
module_param(unmovable_min_percent, uint, 0644);
MODULE_PARM_DESC(unmovable_min_percent, "the least unmovable region, in percent of the zone");

struct resizer_zone contiguitas_resizer_zones[MAX_NUMNODES][MAX_NR_ZONES];

/* How often averages are made, and the border looked at without being asked. */
#define PERIOD (2 * HZ)

static struct {
	struct task_struct *task;
	wait_queue_head_t wake;		/* the thread waits here */
	wait_queue_head_t done;		/* tasks that asked wait here */
	atomic_t asked;
	unsigned long backoff_until[SIDES];	/* jiffies; for a side it can do nothing now */
	unsigned long rounds;
	atomic_long_t waits;
	atomic_long_t relieved;
	atomic_long_t rescued;
} resizer = {
	.wake = __WAIT_QUEUE_HEAD_INITIALIZER(resizer.wake),
	.done = __WAIT_QUEUE_HEAD_INITIALIZER(resizer.done),
	.backoff_until = { INITIAL_JIFFIES, INITIAL_JIFFIES },
};

/* Whether the thread has just tried to give a side something, in vain. */
static bool backs_off(enum side side)
{
	return time_before(jiffies, READ_ONCE(resizer.backoff_until[side]));
}

static void wake_resizer(void)
{
	if (!atomic_xchg(&resizer.asked, 1))
		wake_up(&resizer.wake);
}

bool __contiguitas_balanced(struct zone *zone, unsigned int order, unsigned long mark,
			    int highest_zoneidx)
{
	/* Reclaim gives movable memory. What the unmovable region needs is the border's to give. */
	if (free_pages_of(zone, UNMOVABLE) < low_wmark_pages(zone) && !backs_off(UNMOVABLE))
		wake_resizer();
	return zone_watermark_ok(zone, order, mark, highest_zoneidx, ALLOC_CMA);
}

/* What a side has gained, in events that are counted. */
static unsigned long moved_to(enum side side)
{
	unsigned long sum = 0;
	struct zone *zone;

	for_each_populated_zone(zone) {
		sum += READ_ONCE(resizer_zone(zone)->moved[side]);
		sum += side == MOVABLE ? READ_ONCE(resizer_zone(zone)->spilled) :
					 READ_ONCE(resizer_zone(zone)->returned);
	}
	return sum;
}

/*
 * Where a request may be served: in its zone, and in those below when its own is full; in the last
 * resort, from more than one side can spare.
 */
enum scope { OWN_ZONE, ALL_ZONES, LAST_RESORT };

static void note_request(struct zone *zone, enum scope scope, enum side side,
			 unsigned long blocks)
{
	struct zone *first = scope == OWN_ZONE ? zone : zone - zone_idx(zone);

	for (; zone >= first; zone--) {
		struct resizer_zone *state = resizer_zone(zone);

		if (!contiguitas_zone(zone)->border)
			continue;
		if (scope == LAST_RESORT && side == MOVABLE)
			WRITE_ONCE(state->is_last_resort, true);
		WRITE_ONCE(state->asked[side], blocks);
	}
}

/* Ask for a block or more for a side, and wait, but not for long: the waiter may hold locks. */
static bool ask(struct zone *zone, enum scope scope, enum side side, unsigned int order,
		long timeout)
{
	unsigned long blocks = order > pageblock_order ? 1UL << (order - pageblock_order) : 1;
	unsigned long before = moved_to(side);
	unsigned long round = READ_ONCE(resizer.rounds);
	bool has_grown;

	note_request(zone, scope, side, blocks);
	wake_resizer();
	atomic_long_inc(&resizer.waits);
	/* A round that is under way may have passed this zone. */
	wait_event_killable_timeout(resizer.done, READ_ONCE(resizer.rounds) - round >= 2 ||
				    moved_to(side) != before, timeout);
	has_grown = moved_to(side) != before;
	trace_contiguitas_relieve(order, side == MOVABLE, has_grown);
	return has_grown;
}

static bool may_wait(gfp_t gfp)
{
	return resizer.task && current != resizer.task && (gfp & __GFP_DIRECT_RECLAIM) &&
	       !(current->flags & PF_MEMALLOC);
}

/* A task that holds a file system's locks may block migration. */
static long wait_limit(gfp_t gfp, long jiffies)
{
	return gfp & __GFP_FS ? jiffies : HZ / 50 + 1;
}

/*
 * Reclaim comes first for movable requests, which it serves, and last for unmovable ones. Those leave
 * the zones below alone as long as their own can grow: low memory is scarce.
 */
bool __contiguitas_relieve(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype)
{
	long timeout = wait_limit(gfp, HZ / 2);

	if (migratetype == MIGRATE_MOVABLE || !may_wait(gfp) || backs_off(UNMOVABLE))
		return false;
	if (!ask(zone, OWN_ZONE, UNMOVABLE, order, timeout) &&
	    !ask(zone, ALL_ZONES, UNMOVABLE, order, timeout))
		return false;
	atomic_long_inc(&resizer.relieved);
	return true;
}

bool __contiguitas_spare(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype)
{
	if (migratetype != MIGRATE_MOVABLE || !may_wait(gfp) || backs_off(MOVABLE) ||
	    !ask(zone, ALL_ZONES, MOVABLE, order, wait_limit(gfp, HZ / 2)))
		return false;
	atomic_long_inc(&resizer.relieved);
	return true;
}

bool __contiguitas_last_resort(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype)
{
	enum side side = migratetype == MIGRATE_MOVABLE ? MOVABLE : UNMOVABLE;
	bool has_grown;

	if (!may_wait(gfp) || order > PAGE_ALLOC_COSTLY_ORDER)
		return false;
	has_grown = ask(zone, LAST_RESORT, side, order, wait_limit(gfp, HZ));
	if (has_grown)
		atomic_long_inc(&resizer.rescued);
	return has_grown;
}

/* More, and those who wait for the other side wait too long for a round's end. */
#define BURST_BLOCKS 8UL

/* Demand that comes again at once is a burst, and meets twice as much each time. */
static unsigned long burst_blocks(struct resizer_zone *state)
{
	bool is_same = time_before(jiffies, state->burst_end);

	state->burst = is_same ? min(2 * state->burst, BURST_BLOCKS) : 1;
	state->burst_end = jiffies + HZ / 2;
	return state->burst;
}

/*
 * How far the border should move, in blocks, and in which direction.
 *
 * A region below its low watermark grows to its high one; pressure makes it grow in proportion to
 * the pressure and to the unmovable region's size, up by half of that share and down by a quarter,
 * so that it settles, and by more in a burst. The unmovable region comes first: what it lacks cannot
 * be reclaimed. Shrinking leaves it twice its high watermark.
 */
static unsigned long wanted_blocks(struct zone *zone, bool periodic, enum side *to)
{
	struct resizer_zone *state = resizer_zone(zone);
	unsigned long block = pageblock_nr_pages;
	unsigned long size = contiguitas_zone(zone)->border - zone->zone_start_pfn;
	unsigned long free[SIDES] = { free_pages_of(zone, UNMOVABLE),
					free_pages_of(zone, MOVABLE) };
	unsigned long low = low_wmark_pages(zone), high = high_wmark_pages(zone);
	unsigned long step = max(block, zone->present_pages / 100 * READ_ONCE(step_percent));
	unsigned long least = zone->present_pages / 100 * READ_ONCE(unmovable_min_percent);
	unsigned int threshold = READ_ONCE(pressure_percent) * 100;
	unsigned int unmovable = periodic ? contiguitas_pressure(UNMOVABLE) : 0;
	unsigned int movable = periodic ? contiguitas_pressure(MOVABLE) : 0;
	unsigned long asked[SIDES] = { xchg(&state->asked[UNMOVABLE], 0),
					 xchg(&state->asked[MOVABLE], 0) };
	unsigned long pages;

	if (free[UNMOVABLE] < low || unmovable > threshold || asked[UNMOVABLE]) {
		pages = size / 2 / 10000 * unmovable;
		pages += high > free[UNMOVABLE] ? high - free[UNMOVABLE] : 0;
		pages = max(min(pages, step), block * burst_blocks(state));
		*to = UNMOVABLE;
		return max(DIV_ROUND_UP(pages, block), asked[UNMOVABLE]);
	}
	*to = MOVABLE;
	pages = 0;
	if (asked[MOVABLE])
		pages = step;
	else if (periodic && (free[MOVABLE] < low || movable > threshold) &&
		 unmovable <= threshold / 2)
		pages = min(size / 4 / 10000 * movable +
			    (high > free[MOVABLE] ? high - free[MOVABLE] : 0), step);
	if (free[UNMOVABLE] <= 2 * high || size <= least)
		return 0;
	pages = min3(pages, free[UNMOVABLE] - 2 * high, size - least);
	return pages / block;
}

/*
 * Where unmovable pages all over their region keep the border from moving, movable requests may use
 * what is free between them, rather than that tasks are killed while memory is free. Hardware that
 * migrates unmovable pages would not need this. At first they leave what unmovable requests need
 * soon; before a task is killed, both sides have one reserve, as zones without a border have.
 */
static void update_spills(struct zone *zone, bool is_wanted)
{
	struct resizer_zone *state = resizer_zone(zone);
	bool spills = test_bit(CONTIGUITAS_SPILLS, &zone->flags);
	unsigned long free = free_pages_of(zone, UNMOVABLE), low = low_wmark_pages(zone);
	unsigned long floor = xchg(&state->is_last_resort, false) ? 0 : low;

	if (is_wanted && (!floor || free > low + SWAP_CLUSTER_MAX) &&
	    (!spills || floor < state->spill_floor)) {
		WRITE_ONCE(state->spill_floor, floor);
		set_bit(CONTIGUITAS_SPILLS, &zone->flags);
		state->has_guests = true;
		state->guest_end = ULONG_MAX;
		/* A gain, if there is something above the reserve. */
		state->spilled += free > min_wmark_pages(zone) + SWAP_CLUSTER_MAX;
	} else if (spills && (free <= state->spill_floor ||
			      free_pages_of(zone, MOVABLE) > 2 * high_wmark_pages(zone))) {
		clear_bit(CONTIGUITAS_SPILLS, &zone->flags);
	}
}

static void resize(struct zone *zone, bool periodic)
{
	struct resizer_zone *state = resizer_zone(zone);
	bool is_asked = READ_ONCE(state->asked[MOVABLE]);
	unsigned long wanted, gained = 0;
	enum side to;

	wanted = wanted_blocks(zone, periodic, &to);
	if (wanted && to == UNMOVABLE && state->has_guests) {
		/* As good as blocks, for the waiters. */
		while (wanted && contiguitas_send_back(zone, pageblock_nr_pages)) {
			clear_bit(CONTIGUITAS_SPILLS, &zone->flags);
			state->returned++;
			contiguitas_wake_waiters();
			wanted--;
		}
	} else if (periodic && state->has_guests &&
		   !test_bit(CONTIGUITAS_SPILLS, &zone->flags)) {
		unsigned long free = free_pages_of(zone, MOVABLE), high = high_wmark_pages(zone);

		if (free > 2 * high)
			contiguitas_send_back(zone, free - 2 * high);
	}
	if (wanted)
		gained = contiguitas_move_blocks(zone, to, wanted);
	update_spills(zone, is_asked && !(to == MOVABLE && gained));
	if (periodic)
		contiguitas_sweep(zone);
}

static bool is_short(void)
{
	struct zone *zone;

	for_each_populated_zone(zone)
		if (contiguitas_zone(zone)->border &&
		    free_pages_of(zone, UNMOVABLE) < low_wmark_pages(zone))
			return true;
	return false;
}

static bool has_guests(void)
{
	struct zone *zone;

	for_each_populated_zone(zone)
		if (resizer_zone(zone)->has_guests)
			return true;
	return false;
}

/*
 * One look at every zone. Without the lock of memory that comes and goes, as compaction: who holds
 * it allocates unmovable memory, and may wait for this thread. Pages are looked up as online ones,
 * and a block that goes offline is isolated already.
 */
static void run_round(bool periodic)
{
	unsigned long before[SIDES] = { moved_to(UNMOVABLE), moved_to(MOVABLE) };
	unsigned long backoff = jiffies + HZ / 20 + 1;
	bool movable_asked = false;
	struct zone *zone;

	for_each_populated_zone(zone) {
		if (!contiguitas_zone(zone)->border)
			continue;
		movable_asked |= READ_ONCE(resizer_zone(zone)->asked[MOVABLE]);
		resize(zone, periodic);
	}
	/* Where nothing can be done now, it need not be tried all the time. */
	if (is_short() && moved_to(UNMOVABLE) == before[UNMOVABLE])
		WRITE_ONCE(resizer.backoff_until[UNMOVABLE], backoff);
	if (movable_asked && moved_to(MOVABLE) == before[MOVABLE])
		WRITE_ONCE(resizer.backoff_until[MOVABLE], backoff);
}

static int resizer_thread(void *unused)
{
	u64 then = local_clock();
	unsigned long next = jiffies + PERIOD;

	set_freezable();
	while (!kthread_should_stop()) {
		bool is_idle = contiguitas_is_calm() && !has_guests();
		long wait = is_idle ? MAX_SCHEDULE_TIMEOUT : max((long)(next - jiffies), 1L);
		bool was_asked, periodic;

		wait_event_freezable_timeout(resizer.wake, atomic_read(&resizer.asked) ||
					     kthread_should_stop(), wait);
		was_asked = atomic_xchg(&resizer.asked, 0);
		periodic = time_after_eq(jiffies, next);
		if (periodic) {
			u64 now = local_clock();

			contiguitas_update_pressure(now > then ? now - then : 0);
			then = now;
			next = jiffies + PERIOD;
		}
		if (was_asked || periodic)
			run_round(periodic);
		WRITE_ONCE(resizer.rounds, resizer.rounds + 1);
		wake_up_all(&resizer.done);
	}
	return 0;
}

/* Whether somebody waits now. A hint, which needs no barrier: it may be over at once. */
bool contiguitas_has_waiters(void)
{
	return waitqueue_active(&resizer.done);
}

/* The waiters look again at what there is. */
void contiguitas_wake_waiters(void)
{
	wake_up_all(&resizer.done);
}

/* How often requests waited, and what for. */
int contiguitas_show_waits(char *buffer)
{
	return sysfs_emit(buffer, "waits %ld\nrelieved %ld\nrescued %ld\nrounds %lu\n",
			  atomic_long_read(&resizer.waits), atomic_long_read(&resizer.relieved),
			  atomic_long_read(&resizer.rescued), resizer.rounds);
}

void __init contiguitas_start_resizer(void)
{
	resizer.task = kthread_run(resizer_thread, NULL, "contiguitas");
	if (IS_ERR(resizer.task)) {
		pr_err("the border stays where it is: no thread (%ld)\n", PTR_ERR(resizer.task));
		resizer.task = NULL;
	}
}
