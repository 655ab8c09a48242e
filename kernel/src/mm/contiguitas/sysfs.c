// SPDX-License-Identifier: GPL-2.0-only
/* Contiguitas: what a user sees, below /sys/kernel/mm/contiguitas. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/sysfs.h>

#include "contiguitas.h"

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
	return contiguitas_show_waits(buffer);
}

static struct kobj_attribute waits_attribute = __ATTR_RO(waits);

static ssize_t pressure_show(struct kobject *kobj, struct kobj_attribute *attribute, char *buffer)
{
	return contiguitas_show_pressure(buffer);
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
	contiguitas_start_resizer();
	contiguitas_watch_hotplug();
	for_each_populated_zone(zone)
		if (contiguitas_zone(zone)->border)
			pr_info("node %d zone %s: unmovable below frame %#lx (%lu of %lu MB)\n",
				zone_to_nid(zone), zone->name, contiguitas_zone(zone)->border,
				mib(contiguitas_zone(zone)->border - zone->zone_start_pfn),
				mib(zone->present_pages));
	return sysfs_create_group(mm_kobj, &group);
}
/* Before huge pages raise the watermarks: from then on the border must be able to move. */
arch_initcall(contiguitas_init);
