// SPDX-License-Identifier: GPL-2.0-only
/* Contiguitas: pressure, the time in which some task waits for memory for a side. */
#include <linux/math64.h>
#include <linux/sched/clock.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>

#include "contiguitas.h"

static const char *const side_names[SIDES] = { "unmovable", "movable" };

static const unsigned int windows[] = { 10, 60, 300 };

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
void contiguitas_update_pressure(u64 elapsed)
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

bool contiguitas_is_calm(void)
{
	enum side side;

	for (side = 0; side < SIDES; side++)
		if (READ_ONCE(pressures[side].average[0]) || READ_ONCE(pressures[side].tasks) ||
		    stalled(&pressures[side]) != pressures[side].counted)
			return false;
	return true;
}

/* Of the last 10 s, in 1/100 %. */
unsigned int contiguitas_pressure(enum side side)
{
	return READ_ONCE(pressures[side].average[0]);
}

/* As /proc/pressure/memory has it. */
int contiguitas_show_pressure(char *buffer)
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
