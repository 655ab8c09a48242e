/* SPDX-License-Identifier: GPL-2.0-only */
/* What the parts of Contiguitas share. */
#ifndef _MM_CONTIGUITAS_H
#define _MM_CONTIGUITAS_H

#include <linux/contiguitas.h>
#include <linux/mmzone.h>
#include <linux/vmstat.h>

enum side { UNMOVABLE, MOVABLE, SIDES };

/*
 * What the resizer keeps of a zone besides its border. Stragglers are blocks on the wrong side:
 * they were passed over because something in them could not move.
 */
struct resizer_zone {
	unsigned long asked[SIDES];	/* blocks, by tasks that wait */
	unsigned long burst;		/* blocks, by which the unmovable region grew last */
	unsigned long burst_end;	/* jiffies, until when it is the same burst */
	bool is_last_resort;		/* a waiter for movable memory would be killed */
	unsigned long spill_floor;	/* pages that spilling leaves to unmovable requests */
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

extern struct resizer_zone contiguitas_resizer_zones[MAX_NUMNODES][MAX_NR_ZONES];

static inline struct resizer_zone *resizer_zone(struct zone *zone)
{
	return &contiguitas_resizer_zones[zone_to_nid(zone)][zone_idx(zone)];
}

/* To change it; others read contiguitas_zone(). */
static inline struct contiguitas_zone *border_of(struct zone *zone)
{
	return &contiguitas_zones[zone_to_nid(zone)][zone_idx(zone)];
}

static inline unsigned long free_pages_of(struct zone *zone, enum side side)
{
	unsigned long movable = zone_page_state(zone, NR_FREE_CMA_PAGES);
	unsigned long all = zone_page_state(zone, NR_FREE_PAGES);

	if (side == MOVABLE)
		return movable;
	return all > movable ? all - movable : 0;
}

static inline unsigned long mib(unsigned long pages)
{
	return pages >> (20 - PAGE_SHIFT);
}

/* border.c */
void contiguitas_move_border(struct zone *zone, unsigned long border);
bool contiguitas_in_cma_area(unsigned long pfn);
void contiguitas_watch_hotplug(void);

/* pressure.c */
void contiguitas_update_pressure(u64 elapsed);
unsigned int contiguitas_pressure(enum side side);
bool contiguitas_is_calm(void);
int contiguitas_show_pressure(char *buffer);

/* blocks.c */
unsigned long contiguitas_move_blocks(struct zone *zone, enum side to, unsigned long wanted);
void contiguitas_sweep(struct zone *zone);
unsigned long contiguitas_send_back(struct zone *zone, unsigned long wanted);

/* resizer.c */
void contiguitas_start_resizer(void);
bool contiguitas_has_waiters(void);
void contiguitas_wake_waiters(void);
int contiguitas_show_waits(char *buffer);

#endif /* _MM_CONTIGUITAS_H */
