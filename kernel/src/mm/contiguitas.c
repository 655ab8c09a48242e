// SPDX-License-Identifier: GPL-2.0-only
/*
 * Contiguitas: the border between unmovable and movable memory, and the thread that moves it.
 *
 * See Documentation/admin-guide/mm/contiguitas.rst. Of Contiguitas (ISCA 2023) this is the half that
 * an operating system can do alone: confinement (section 3.1), placement away from the border (3.2)
 * and resizing (3.3). The paper does not publish how much memory a resize moves; the rule here is a
 * proportional one, described at wanted_blocks().
 */
#define pr_fmt(fmt) "contiguitas: " fmt

#include <linux/cma.h>
#include <linux/contiguitas.h>
#include <linux/compaction.h>
#include <linux/freezer.h>
#include <linux/kobject.h>
#include <linux/kthread.h>
#include <linux/math64.h>
#include <linux/memblock.h>
#include <linux/memory.h>
#include <linux/memory_hotplug.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/page-isolation.h>
#include <linux/sched/clock.h>
#include <linux/sched/mm.h>
#include <linux/sysfs.h>
#include <linux/wait.h>

#include "internal.h"

#define CREATE_TRACE_POINTS
#include <trace/events/contiguitas.h>

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "contiguitas."

enum side { UNMOVABLE, MOVABLE, SIDES };

static const char *const side_names[SIDES] = { "unmovable", "movable" };

DEFINE_STATIC_KEY_FALSE(contiguitas_key);
struct contiguitas_zone contiguitas_zones[MAX_NUMNODES][MAX_NR_ZONES] __read_mostly;

/* Of initial unmovable memory: a number of bytes, or a share of all memory. */
static u64 initial_bytes __initdata;
static unsigned int initial_percent __initdata;

/* Share of a region, next to the border, that is used last. */
static unsigned int bias_percent = 10;
module_param(bias_percent, uint, 0644);
MODULE_PARM_DESC(bias_percent, "share of a region, next to the border, that is used last");

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

/* How many blocks of a zone that cannot be emptied may lie on the wrong side of the border. */
static unsigned int skip_blocks = 4;
module_param(skip_blocks, uint, 0644);
MODULE_PARM_DESC(skip_blocks, "blocks of a zone that the border may pass without emptying them");

/*
 * What the resizer keeps of a zone besides its border. Stragglers are blocks on the wrong side: they
 * were passed over because something in them could not move.
 */
struct resizer_zone {
	unsigned long asked[SIDES];	/* blocks, by tasks that wait */
	unsigned long spilled;		/* how often movable requests could spill over */
	unsigned long sent_back;	/* pages that had, and are back */
	unsigned long returned;		/* rounds in which some went back for unmovable memory */
	bool has_guests;		/* there may be more of them */
	unsigned long guest_end;	/* above here there are none */
	unsigned long straggler_start;	/* where there may be stragglers */
	unsigned long straggler_end;
	unsigned long moved[SIDES];	/* blocks that the side has gained */
	unsigned long held;		/* blocks that could not be emptied */
	unsigned long last_held;	/* the last of them, a frame */
};

static struct resizer_zone resizer_zones[MAX_NUMNODES][MAX_NR_ZONES];

static struct {
	struct task_struct *task;
	wait_queue_head_t wake;		/* the thread waits here */
	wait_queue_head_t done;		/* tasks that asked wait here */
	atomic_t asked;
	unsigned long rests_until[SIDES];	/* jiffies; for a side it can do nothing now */
	unsigned long rounds;
	atomic_long_t waits;
	atomic_long_t relieved;
	atomic_long_t rescued;
} resizer = {
	.wake = __WAIT_QUEUE_HEAD_INITIALIZER(resizer.wake),
	.done = __WAIT_QUEUE_HEAD_INITIALIZER(resizer.done),
	.rests_until = { INITIAL_JIFFIES, INITIAL_JIFFIES },
};

static struct resizer_zone *resizer_zone(struct zone *zone)
{
	return &resizer_zones[zone_to_nid(zone)][zone_idx(zone)];
}

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
	struct contiguitas_zone *state = &contiguitas_zones[zone_to_nid(zone)][zone_idx(zone)];
	unsigned long below = border - zone->zone_start_pfn;
	unsigned long above = zone_end_pfn(zone) > border ? zone_end_pfn(zone) - border : 0;
	unsigned int percent = min(READ_ONCE(bias_percent), 100U);

	WRITE_ONCE(state->bias_start, border - below / 100 * percent);
	WRITE_ONCE(state->bias_end, border + above / 100 * percent);
	WRITE_ONCE(state->border, border);
}

/* ---- Boot ---- */

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

		if (*end == '%' && number > 0 && number < 100)
			initial_percent = number;
		else if (*end == '\0' && number >= SZ_1M)
			initial_bytes = number;
		else {
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

/* Call a function for each free range of a zone, until it says that it has enough. */
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

void __init __contiguitas_init_borders(void)
{
	unsigned long end_pfn;
	struct zone *zone;
	u64 all = 0, wanted;

	for_each_populated_zone(zone)
		if (takes_part(zone))
			all += free_in_zone(zone, U64_MAX, &end_pfn);
	if (all < SZ_256M) {
		pr_warn("off: needs 256 MB of memory\n");
		static_branch_disable(&contiguitas_key);
		return;
	}
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
		set_border(zone, ALIGN(end_pfn, pageblock_nr_pages));
	}
}

/* ---- What the page allocator asks ---- */

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
static bool in_cma_area(unsigned long pfn)
{
	struct frames range = { pfn, pfn + pageblock_nr_pages };

	return cma_for_each_area(overlaps, &range);
}

bool __contiguitas_movable_block(struct page *page)
{
	unsigned long border = READ_ONCE(contiguitas_zone(page_zone(page))->border);
	unsigned long pfn = pageblock_start_pfn(page_to_pfn(page));

	return border && pfn >= border && !in_cma_area(pfn);
}

static unsigned long free_pages_of(struct zone *zone, enum side side)
{
	unsigned long movable = zone_page_state(zone, NR_FREE_CMA_PAGES);
	unsigned long all = zone_page_state(zone, NR_FREE_PAGES);

	if (side == MOVABLE)
		return movable;
	return all > movable ? all - movable : 0;
}

/*
 * Movable pages in the unmovable region spoil nothing that is not spoiled, but only single pages are
 * found there, and its reserve is not theirs.
 */
bool __contiguitas_spills(struct zone *zone, unsigned int order)
{
	return !order && free_pages_of(zone, UNMOVABLE) > high_wmark_pages(zone);
}

long __contiguitas_unusable(struct zone *zone, unsigned int order)
{
	unsigned long free = free_pages_of(zone, UNMOVABLE);

	if (READ_ONCE(contiguitas_zone(zone)->spills) && !order)
		return min(free, high_wmark_pages(zone));
	return free;
}

/* Whether the thread has just tried to give a side something, in vain. */
static bool rests(enum side side)
{
	return time_before(jiffies, READ_ONCE(resizer.rests_until[side]));
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
	if (free_pages_of(zone, UNMOVABLE) < low_wmark_pages(zone) && !rests(UNMOVABLE))
		wake_resizer();
	return zone_watermark_ok(zone, order, mark, highest_zoneidx, ALLOC_CMA);
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

/* What a request may use: its zone and those below, which serve it when its own is full. */
static void note_request(struct zone *zone, enum side side, unsigned long blocks)
{
	struct zone *first = zone - zone_idx(zone);

	for (; zone >= first; zone--)
		if (contiguitas_zone(zone)->border)
			WRITE_ONCE(resizer_zone(zone)->asked[side], blocks);
}

/* Ask for a block or more for a side, and wait, but not for long: the waiter may hold locks. */
static bool ask(struct zone *zone, enum side side, unsigned int order, long timeout)
{
	unsigned long blocks = order > pageblock_order ? 1UL << (order - pageblock_order) : 1;
	unsigned long before = moved_to(side);
	unsigned long round = READ_ONCE(resizer.rounds);
	bool has_grown;

	note_request(zone, side, blocks);
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

/* Who holds a file system's locks may stand in migration's way. */
static long patience(gfp_t gfp, long jiffies)
{
	return gfp & __GFP_FS ? jiffies : HZ / 50 + 1;
}

static bool relieve(struct zone *zone, gfp_t gfp, unsigned int order, enum side side)
{
	if (!may_wait(gfp) || rests(side) || !ask(zone, side, order, patience(gfp, HZ / 2)))
		return false;
	atomic_long_inc(&resizer.relieved);
	return true;
}

/* Reclaim comes first for movable requests, which it serves, and last for unmovable ones. */
bool __contiguitas_relieve(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype)
{
	return migratetype != MIGRATE_MOVABLE && relieve(zone, gfp, order, UNMOVABLE);
}

bool __contiguitas_spare(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype)
{
	return migratetype == MIGRATE_MOVABLE && relieve(zone, gfp, order, MOVABLE);
}

bool __contiguitas_last_resort(struct zone *zone, gfp_t gfp, unsigned int order, int migratetype)
{
	bool has_grown;

	if (!may_wait(gfp) || order > PAGE_ALLOC_COSTLY_ORDER)
		return false;
	has_grown = ask(zone, migratetype == MIGRATE_MOVABLE ? MOVABLE : UNMOVABLE, order,
			patience(gfp, HZ));
	if (has_grown)
		atomic_long_inc(&resizer.rescued);
	return has_grown;
}

/* ---- Pressure: time in which some task waits for memory for a side ---- */

static const unsigned int windows[] = { 10, 60, 300 };
#define PERIOD_SECONDS 2
#define PERIOD (PERIOD_SECONDS * HZ)

struct pressure {
	spinlock_t lock;
	unsigned int tasks;	/* that wait now */
	u64 since;		/* when that became more than none */
	u64 total;		/* nanoseconds, without the wait under way */
	u64 counted;		/* of them, in the averages */
	unsigned int average[ARRAY_SIZE(windows)];	/* in 1/100 % */
};

static struct pressure pressures[SIDES] = {
	[UNMOVABLE] = { .lock = __SPIN_LOCK_UNLOCKED(pressures[UNMOVABLE].lock) },
	[MOVABLE] = { .lock = __SPIN_LOCK_UNLOCKED(pressures[MOVABLE].lock) },
};

static struct pressure *pressure_of(int migratetype)
{
	return &pressures[migratetype == MIGRATE_MOVABLE ? MOVABLE : UNMOVABLE];
}

void __contiguitas_stall_begin(int migratetype)
{
	struct pressure *pressure = pressure_of(migratetype);
	unsigned long flags;

	spin_lock_irqsave(&pressure->lock, flags);
	if (!pressure->tasks++)
		pressure->since = local_clock();
	spin_unlock_irqrestore(&pressure->lock, flags);
}

void __contiguitas_stall_end(int migratetype)
{
	struct pressure *pressure = pressure_of(migratetype);
	unsigned long flags;
	u64 now;

	spin_lock_irqsave(&pressure->lock, flags);
	now = local_clock();
	/* The clocks of two processors may be a little apart. */
	if (!--pressure->tasks && now > pressure->since)
		pressure->total += now - pressure->since;
	spin_unlock_irqrestore(&pressure->lock, flags);
}

static u64 stalled(struct pressure *pressure)
{
	unsigned long flags;
	u64 total, now;

	spin_lock_irqsave(&pressure->lock, flags);
	total = pressure->total;
	now = local_clock();
	if (pressure->tasks && now > pressure->since)
		total += now - pressure->since;
	spin_unlock_irqrestore(&pressure->lock, flags);
	return total;
}

/*
 * Averages as the kernel's pressure stall information has them, which decay by exp(-2 s / window);
 * in a fixed point of 2048.
 */
static void update_averages(u64 elapsed)
{
	static const unsigned int decay[ARRAY_SIZE(windows)] = { 1677, 1981, 2034 };
	enum side side;

	if (!elapsed)
		return;
	for (side = 0; side < SIDES; side++) {
		struct pressure *pressure = &pressures[side];
		u64 total = stalled(pressure);
		/* A total may lag what was counted, by the difference of two clocks. */
		u64 new = total > pressure->counted ? total - pressure->counted : 0;
		unsigned int now = min_t(u64, div64_u64(new * 10000, elapsed), 10000);
		int i;

		pressure->counted = max(total, pressure->counted);
		for (i = 0; i < ARRAY_SIZE(windows); i++)
			pressure->average[i] = (pressure->average[i] * decay[i] +
						now * (2048 - decay[i])) >> 11;
	}
}

static bool is_calm(void)
{
	enum side side;

	for (side = 0; side < SIDES; side++)
		if (READ_ONCE(pressures[side].average[0]) || READ_ONCE(pressures[side].tasks) ||
		    stalled(&pressures[side]) != pressures[side].counted)
			return false;
	return true;
}

/* ---- Moving the border ---- */

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
	if ((type == MIGRATE_CMA && in_cma_area(pfn)) || is_of_boot(pfn))
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

static void move_border(struct zone *zone, unsigned long border)
{
	unsigned long flags;

	spin_lock_irqsave(&zone->lock, flags);
	set_border(zone, border);
	spin_unlock_irqrestore(&zone->lock, flags);
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
static unsigned long move_blocks(struct zone *zone, enum side to, unsigned long wanted)
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
		unsigned long run, low;

		if (block_at(zone, pfn, to) != TO_MOVE) {
			pfn += step;
			/* It is on its side now, or nobody's. */
			border += step;
			continue;
		}
		run = run_of_blocks(zone, pfn, step, min(chunk, wanted - gained), to);
		low = to == UNMOVABLE ? pfn : pfn - (run - 1) * pageblock_nr_pages;
		error = hand_over(zone, low, run, to);
		if (!error) {
			pfn += run * step;
			border = to == UNMOVABLE ? pfn : pfn + pageblock_nr_pages;
			gained += run;
			/* Now and not at the end: who asked has it at once. */
			move_border(zone, border);
			wake_up_all(&resizer.done);
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
		move_border(zone, border);
	if (from != contiguitas_zone(zone)->border)
		trace_contiguitas_resize(zone_to_nid(zone), zone_idx(zone), from,
					 contiguitas_zone(zone)->border, wanted);
	return gained;
}

/* Blocks that one round tries again. */
#define SWEEP_BLOCKS 32

/* Give stragglers to the region that they lie in. */
static void sweep(struct zone *zone)
{
	struct resizer_zone *state = resizer_zone(zone);
	unsigned long pfn = state->straggler_start, end = state->straggler_end;
	unsigned long first_left = 0, last_left = 0;
	unsigned int tried = 0;

	for (; pfn < end && tried < SWEEP_BLOCKS; pfn += pageblock_nr_pages) {
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
 * Movable pages in the unmovable region go back before that region grows for what they take: a number
 * of pages, from the border down. What is pinned stays.
 */
static unsigned long send_back(struct zone *zone, unsigned long wanted)
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
	while (sent < wanted && pfn > first && !kthread_should_stop()) {
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

/*
 * How far the border should move, in blocks, and in which direction.
 *
 * A region below its low watermark grows to its high one; pressure makes it grow in proportion to
 * the pressure and to the unmovable region's size, up by half of that share and down by a quarter,
 * so that it settles. The unmovable region comes first: what it lacks cannot be reclaimed. Shrinking
 * leaves it twice its high watermark.
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
	unsigned int unmovable = periodic ? pressures[UNMOVABLE].average[0] : 0;
	unsigned int movable = periodic ? pressures[MOVABLE].average[0] : 0;
	unsigned long asked[SIDES] = { xchg(&state->asked[UNMOVABLE], 0),
					 xchg(&state->asked[MOVABLE], 0) };
	unsigned long pages;

	if (free[UNMOVABLE] < low || unmovable > threshold || asked[UNMOVABLE]) {
		pages = size / 2 / 10000 * unmovable;
		pages += high > free[UNMOVABLE] ? high - free[UNMOVABLE] : 0;
		pages = clamp(pages, block, step);
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
 * migrates unmovable pages would not need this.
 */
static void update_spills(struct zone *zone, bool is_wanted)
{
	struct contiguitas_zone *state = &contiguitas_zones[zone_to_nid(zone)][zone_idx(zone)];
	bool has_room = free_pages_of(zone, UNMOVABLE) > high_wmark_pages(zone);

	if (is_wanted && !state->spills && has_room) {
		WRITE_ONCE(state->spills, true);
		resizer_zone(zone)->spilled++;
		resizer_zone(zone)->has_guests = true;
		resizer_zone(zone)->guest_end = ULONG_MAX;
	} else if (state->spills && (!has_room || free_pages_of(zone, MOVABLE) >
				     2 * high_wmark_pages(zone))) {
		WRITE_ONCE(state->spills, false);
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
		contiguitas_zones[zone_to_nid(zone)][zone_idx(zone)].spills = false;
		if (send_back(zone, wanted * pageblock_nr_pages)) {
			/* As good as blocks, for who waits. */
			state->returned++;
			wanted = free_pages_of(zone, UNMOVABLE) < low_wmark_pages(zone) ? wanted : 0;
		}
	} else if (periodic && state->has_guests && !contiguitas_zone(zone)->spills) {
		unsigned long free = free_pages_of(zone, MOVABLE), high = high_wmark_pages(zone);

		if (free > 2 * high)
			send_back(zone, free - 2 * high);
	}
	if (wanted)
		gained = move_blocks(zone, to, wanted);
	update_spills(zone, is_asked && !(to == MOVABLE && gained));
	if (periodic)
		sweep(zone);
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

/* One look at every zone. */
static void run_round(bool periodic)
{
	unsigned long before[SIDES] = { moved_to(UNMOVABLE), moved_to(MOVABLE) };
	unsigned long rest = jiffies + HZ / 20 + 1;
	bool movable_asked = false;
	struct zone *zone;

	get_online_mems();
	for_each_populated_zone(zone) {
		if (!contiguitas_zone(zone)->border)
			continue;
		movable_asked |= READ_ONCE(resizer_zone(zone)->asked[MOVABLE]);
		resize(zone, periodic);
	}
	put_online_mems();
	/* Where nothing can be done now, it need not be tried all the time. */
	if (is_short() && moved_to(UNMOVABLE) == before[UNMOVABLE])
		WRITE_ONCE(resizer.rests_until[UNMOVABLE], rest);
	if (movable_asked && moved_to(MOVABLE) == before[MOVABLE])
		WRITE_ONCE(resizer.rests_until[MOVABLE], rest);
}

static int resizer_thread(void *unused)
{
	u64 then = local_clock();
	unsigned long next = jiffies + PERIOD;

	set_freezable();
	while (!kthread_should_stop()) {
		bool is_idle = is_calm() && !has_guests();
		long wait = is_idle ? MAX_SCHEDULE_TIMEOUT : max((long)(next - jiffies), 1L);
		bool was_asked, periodic;

		wait_event_freezable_timeout(resizer.wake, atomic_read(&resizer.asked) ||
					     kthread_should_stop(), wait);
		was_asked = atomic_xchg(&resizer.asked, 0);
		periodic = time_after_eq(jiffies, next);
		if (periodic) {
			u64 now = local_clock();

			update_averages(now > then ? now - then : 0);
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

/* Memory that comes later lies in the movable region; a zone that had none gets a border now. */
static int memory_callback(struct notifier_block *self, unsigned long action, void *data)
{
	struct memory_notify *notify = data;
	struct zone *zone;

	if (action != MEM_GOING_ONLINE)
		return NOTIFY_OK;
	zone = page_zone(pfn_to_page(notify->start_pfn));
	if (takes_part(zone))
		move_border(zone, contiguitas_zone(zone)->border ?:
			    ALIGN(zone->zone_start_pfn, pageblock_nr_pages));
	return NOTIFY_OK;
}

/* ---- What a user sees, below /sys/kernel/mm/contiguitas ---- */

static unsigned long mib(unsigned long pages)
{
	return pages >> (20 - PAGE_SHIFT);
}

static ssize_t zones_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buffer)
{
	struct zone *zone;
	int length;

	length = sysfs_emit(buffer, "node zone border_pfn unmovable_mib movable_mib "
			    "unmovable_free_mib movable_free_mib gained_by_unmovable "
			    "gained_by_movable held last_held_pfn spilled sent_back\n");
	for_each_populated_zone(zone) {
		const struct contiguitas_zone *state = contiguitas_zone(zone);
		struct resizer_zone *more = resizer_zone(zone);

		if (!state->border)
			continue;
		length += sysfs_emit_at(buffer, length, "%d %s %lu %lu %lu %lu %lu %lu %lu %lu %lu "
					"%lu %lu\n",
					zone_to_nid(zone), zone->name, state->border,
					mib(state->border - zone->zone_start_pfn),
					mib(zone->present_pages) -
					mib(state->border - zone->zone_start_pfn),
					mib(free_pages_of(zone, UNMOVABLE)),
					mib(free_pages_of(zone, MOVABLE)), more->moved[UNMOVABLE],
					more->moved[MOVABLE], more->held, more->last_held,
					more->spilled, more->sent_back);
	}
	return length;
}
static struct kobj_attribute zones_attribute = __ATTR_RO(zones);

static ssize_t waits_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "waits %ld\nrelieved %ld\nrescued %ld\nrounds %lu\n",
			  atomic_long_read(&resizer.waits), atomic_long_read(&resizer.relieved),
			  atomic_long_read(&resizer.rescued), resizer.rounds);
}
static struct kobj_attribute waits_attribute = __ATTR_RO(waits);

static ssize_t pressure_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buffer)
{
	enum side side;
	int length = 0;

	for (side = 0; side < SIDES; side++) {
		struct pressure *pressure = &pressures[side];
		unsigned int *average = pressure->average;

		length += sysfs_emit_at(buffer, length, "%s some avg10=%u.%02u avg60=%u.%02u "
					"avg300=%u.%02u total=%llu\n", side_names[side],
					average[0] / 100, average[0] % 100,
					average[1] / 100, average[1] % 100,
					average[2] / 100, average[2] % 100,
					div_u64(stalled(pressure), NSEC_PER_USEC));
	}
	return length;
}
static struct kobj_attribute pressure_attribute = __ATTR_RO(pressure);

static struct attribute *attributes[] = {
	&zones_attribute.attr,
	&waits_attribute.attr,
	&pressure_attribute.attr,
	NULL,
};

static const struct attribute_group group = {
	.name = "contiguitas",
	.attrs = attributes,
};

static int __init contiguitas_init(void)
{
	struct zone *zone;

	if (!static_key_enabled(&contiguitas_key))
		return 0;
	resizer.task = kthread_run(resizer_thread, NULL, "contiguitas");
	if (IS_ERR(resizer.task)) {
		pr_err("the border stays where it is: no thread (%ld)\n", PTR_ERR(resizer.task));
		resizer.task = NULL;
	}
	hotplug_memory_notifier(memory_callback, 0);
	for_each_populated_zone(zone)
		if (contiguitas_zone(zone)->border)
			pr_info("node %d zone %s: unmovable below frame %#lx (%lu of %lu MB)\n",
				zone_to_nid(zone), zone->name, contiguitas_zone(zone)->border,
				mib(contiguitas_zone(zone)->border - zone->zone_start_pfn),
				mib(zone->present_pages));
	return sysfs_create_group(mm_kobj, &group);
}
subsys_initcall(contiguitas_init);
