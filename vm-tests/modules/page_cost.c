// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cost of allocating and freeing pages.
 *
 * Loading it prints, for each request, a line "page_cost: pairs NAME COUNT LEAST MEDIAN":
 * the ticks of the time-stamp counter that so many pairs of allocation and free took, in the best and
 * in the median of some repeats. An interrupt costs the repeat in which it comes.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sort.h>
#include <asm/msr.h>

#define REPEATS 31
#define MOST 1024

static struct page *pages[MOST];

/* Requests of one kind: so many are made before the first is given back. */
struct request {
	const char *name;
	gfp_t gfp;
	unsigned int order;
	unsigned int batch;
	unsigned int batches;
	bool in_bulk;
};

/*
 * Orders of 4 and more, and batches beyond what a processor's list holds, come from the buddy
 * allocator. Those that split and join most are first.
 */
static const struct request requests[] = {
	{ "unmovable_4", GFP_KERNEL, 4, 4, 100 },
	{ "movable_4", GFP_HIGHUSER_MOVABLE, 4, 4, 100 },
	{ "unmovable_0", GFP_KERNEL, 0, 1, 500 },
	{ "movable_0", GFP_HIGHUSER_MOVABLE, 0, 1, 500 },
	{ "unmovable_0_batch", GFP_KERNEL, 0, MOST, 1 },
	{ "movable_0_batch", GFP_HIGHUSER_MOVABLE, 0, MOST, 1 },
	{ "unmovable_0_bulk", GFP_KERNEL, 0, 256, 2, true },
	{ "movable_0_bulk", GFP_HIGHUSER_MOVABLE, 0, 256, 2, true },
	{ "unmovable_2", GFP_KERNEL, 2, 1, 500 },
	{ "movable_2", GFP_HIGHUSER_MOVABLE, 2, 1, 500 },
	{ "unmovable_2_batch", GFP_KERNEL, 2, 512, 1 },
	{ "movable_2_batch", GFP_HIGHUSER_MOVABLE, 2, 512, 1 },
	{ "unmovable_9", GFP_KERNEL, 9, 8, 50 },
	{ "movable_9", GFP_HIGHUSER_MOVABLE, 9, 8, 50 },
};

static int allocate(const struct request *request)
{
	unsigned int i;

	if (request->in_bulk) {
		memset(pages, 0, sizeof(pages));
		return alloc_pages_bulk_array(request->gfp, request->batch, pages);
	}
	for (i = 0; i < request->batch; i++) {
		pages[i] = alloc_pages(request->gfp, request->order);
		if (!pages[i])
			break;
	}
	return i;
}

/* Returns the ticks that all batches took; 0 where memory is short. */
static u64 once(const struct request *request)
{
	u64 start = rdtsc_ordered();
	unsigned int i, j;

	for (i = 0; i < request->batches; i++) {
		unsigned int got = allocate(request);

		for (j = 0; j < got; j++)
			__free_pages(pages[j], request->order);
		if (got < request->batch)
			return 0;
	}
	return rdtsc_ordered() - start;
}

/*
 * Hold all free blocks that are smaller than the largest, so that what a request must split and a
 * free can join depends on nothing that happened before: take blocks until one of the largest has
 * been used up from its start, and give that one back.
 */
static int hold_fragments(gfp_t gfp)
{
	const unsigned int order = 4, all = MAX_ORDER_NR_PAGES >> order;
	unsigned long next = 0;
	unsigned int run = 0;

	while (run < all) {
		struct page *page = alloc_pages(gfp, order);

		if (!page)
			return -ENOMEM;
		if (IS_ALIGNED(page_to_pfn(page), MAX_ORDER_NR_PAGES))
			run = 0;
		else if (!run || page_to_pfn(page) != next)
			continue;
		pages[run++] = page;
		next = page_to_pfn(page) + (1 << order);
	}
	while (run)
		__free_pages(pages[--run], order);
	return 0;
}

static int compare(const void *left, const void *right)
{
	u64 a = *(const u64 *)left, b = *(const u64 *)right;

	return a < b ? -1 : a > b;
}

static int __init page_cost_init(void)
{
	static u64 took[REPEATS];
	unsigned int i, j;

	if (hold_fragments(GFP_KERNEL) || hold_fragments(GFP_HIGHUSER_MOVABLE)) {
		pr_err("no memory\n");
		return -ENOMEM;
	}
	for (i = 0; i < ARRAY_SIZE(requests); i++) {
		const struct request *request = &requests[i];

		/* The first repeats bring lists and emulated caches into the state that lasts. */
		for (j = 0; j < 5; j++)
			once(request);
		for (j = 0; j < REPEATS; j++) {
			took[j] = once(request);
			if (!took[j]) {
				pr_err("%s: no memory\n", request->name);
				return -ENOMEM;
			}
			cond_resched();
		}
		sort(took, REPEATS, sizeof(took[0]), compare, NULL);
		pr_info("pairs %s %u %llu %llu\n", request->name, request->batch * request->batches,
			took[0], took[REPEATS / 2]);
	}
	return 0;
}
module_init(page_cost_init);

MODULE_DESCRIPTION("Cost of page allocations");
MODULE_LICENSE("GPL");
