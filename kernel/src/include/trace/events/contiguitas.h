/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM contiguitas

#if !defined(_TRACE_CONTIGUITAS_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_CONTIGUITAS_H

#include <linux/tracepoint.h>

/* The border of a zone has moved. */
TRACE_EVENT(contiguitas_resize,

	TP_PROTO(int nid, int zone, unsigned long from, unsigned long to, unsigned long wanted),

	TP_ARGS(nid, zone, from, to, wanted),

	TP_STRUCT__entry(
		__field(int, nid)
		__field(int, zone)
		__field(unsigned long, from)
		__field(unsigned long, to)
		__field(unsigned long, wanted)
	),

	TP_fast_assign(
		__entry->nid = nid;
		__entry->zone = zone;
		__entry->from = from;
		__entry->to = to;
		__entry->wanted = wanted;
	),

	TP_printk("nid=%d zone=%d border=%#lx->%#lx wanted_blocks=%lu",
		  __entry->nid, __entry->zone, __entry->from, __entry->to, __entry->wanted)
);

/* A block could not be emptied. */
TRACE_EVENT(contiguitas_held,

	TP_PROTO(unsigned long pfn, bool is_movable, int error),

	TP_ARGS(pfn, is_movable, error),

	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(bool, is_movable)
		__field(int, error)
	),

	TP_fast_assign(
		__entry->pfn = pfn;
		__entry->is_movable = is_movable;
		__entry->error = error;
	),

	TP_printk("pfn=%#lx region=%s error=%d", __entry->pfn,
		  __entry->is_movable ? "movable" : "unmovable", __entry->error)
);

/* A request has waited for the border. */
TRACE_EVENT(contiguitas_relieve,

	TP_PROTO(unsigned int order, bool is_movable, bool has_grown),

	TP_ARGS(order, is_movable, has_grown),

	TP_STRUCT__entry(
		__field(unsigned int, order)
		__field(bool, is_movable)
		__field(bool, has_grown)
	),

	TP_fast_assign(
		__entry->order = order;
		__entry->is_movable = is_movable;
		__entry->has_grown = has_grown;
	),

	TP_printk("order=%u region=%s grown=%d", __entry->order,
		  __entry->is_movable ? "movable" : "unmovable", __entry->has_grown)
);

#endif /* _TRACE_CONTIGUITAS_H */

#include <trace/define_trace.h>
