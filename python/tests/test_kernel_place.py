"""The tool that places hooks into a kernel tree, on a small tree of our own."""

import subprocess
from pathlib import Path

import pytest

KERNEL = Path(__file__).parents[2] / "kernel"

#: The places that hooks need, and nothing else of a kernel.
TREE = {
    "mm/Makefile": "obj-y := page_alloc.o\n",
    "mm/Kconfig": "menu\n\nendmenu\n",
    "mm/sparse.c": """#include <linux/mm.h>
void __init sparse_init(void)
{
	memblocks_present();
}
""",
    "mm/mm_init.c": """#include <linux/mm.h>
static void __init memmap_init(void)
{
	for_each_mem_pfn_range(i) {
	}
}
""",
    "mm/memblock.c": """#include <linux/mm.h>
void __init memblock_free_all(void)
{
	reset_all_zones_managed_pages();
}
""",
    "mm/page_alloc.c": """#include <linux/mm.h>
static struct page *__rmqueue(struct zone *zone, int order);
static __always_inline struct page *
__rmqueue(struct zone *zone, int order)
{
	struct page *page;

	if (1) {
		if (alloc_flags & ALLOC_CMA &&
			zone_page_state(zone, NR_FREE_CMA_PAGES) >
			zone_page_state(zone, NR_FREE_PAGES) / 2) {
			page = __rmqueue_cma_fallback(zone, order);
			if (page)
				return page;
		}
	}
	return page;
}
static long __zone_watermark_unusable_free(struct zone *z)
{
	return unusable_free;
}
bool __zone_watermark_ok(struct zone *z)
{
	for (o = order; o < MAX_ORDER; o++) {
	}
}
static void __free_one_page(struct page *page)
{
	if (to_tail)
		tail();
}
void set_pageblock_migratetype(struct page *page, int migratetype)
{
	if (unlikely(page_group_by_mobility_disabled))
		return;
}
static bool unreserve_highatomic_pageblock(const struct alloc_context *ac)
{
	move(page, ac->migratetype);
	more(page, ac->migratetype, 1);
}
static struct page *
__alloc_pages_direct_compact(gfp_t gfp_mask)
{
	psi_memstall_enter(&pflags);
	psi_memstall_leave(&pflags);
}
static inline struct page *
__alloc_pages_direct_compact(gfp_t gfp_mask)
{
	return NULL;
}
static struct page *__alloc_pages_direct_reclaim(gfp_t gfp_mask)
{
	psi_memstall_enter(&pflags);
	*did_some_progress = __perform_reclaim(gfp_mask, order, ac);
out:
	psi_memstall_leave(&pflags);
}
static struct page *__alloc_pages_may_oom(gfp_t gfp_mask)
{
	*did_some_progress = 0;
	page = get_page_from_freelist(gfp_mask, order, ALLOC_WMARK_HIGH|ALLOC_CPUSET, ac);
}
""",
    "mm/page_isolation.c": """#include <linux/mm.h>
static struct page *has_unmovable_pages(struct page *page)
{
	if (is_migrate_cma_page(page)) {
	}
}
static void unset_migratetype_isolate(struct page *page, int migratetype)
{
	spin_lock_irqsave(&zone->lock, flags);
}
""",
    "mm/vmscan.c": """#include <linux/mm.h>
static bool pgdat_balanced(pg_data_t *pgdat)
{
	if (zone_watermark_ok_safe(zone, order, mark, highest_zoneidx))
		return true;
}
static bool compaction_ready(struct zone *zone, struct scan_control *sc)
{
	suitable = compaction_suitable(zone, sc->order);
}
static bool should_continue_reclaim(struct pglist_data *pgdat, struct scan_control *sc)
{
	for (;;) {
		switch (compaction_suitable(zone, sc->order)) {
		}
	}
}
""",
    "mm/compaction.c": """#include <linux/mm.h>
static enum compact_result __compaction_suitable(struct zone *zone)
{
	watermark = wmark_pages(zone, alloc_flags);
}
""",
    "mm/migrate.c": "#include <linux/mm.h>\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def place(*arguments):
    return subprocess.run([KERNEL / "place", *arguments], capture_output=True, text=True)


def contents(tree):
    return {
        str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()
    }


def test_every_hook_is_placed_once(tree):
    done = place(tree)
    assert done.returncode == 0, done.stderr
    text = (tree / "mm/page_alloc.c").read_text()
    # Behind the declaration, and not in the prototype.
    assert text.count("contiguitas_spills(zone, order)") == 1
    assert text.index("struct page *page;") < text.index("contiguitas_confines")
    assert "ALLOC_CMA &&\n\t\t\tcontiguitas_prefers_cma(zone))" in text
    assert "unusable_free += contiguitas_unusable" in text
    assert text.index("contiguitas_has_block(") < text.index("for (o = order;")
    assert text.count("contiguitas_block_type(page, ac->migratetype)") == 2
    assert text.count("contiguitas_stall_begin") == text.count("contiguitas_stall_end") == 2
    assert text.startswith("#include <linux/contiguitas.h>\n")
    assert "contiguitas_is_cma_page(page)" in (tree / "mm/page_isolation.c").read_text()
    assert "contiguitas_balanced(zone" in (tree / "mm/vmscan.c").read_text()
    assert "contiguitas/" in (tree / "mm/Makefile").read_text()
    kconfig = (tree / "mm/Kconfig").read_text()
    assert kconfig.index("mm/contiguitas/Kconfig") < kconfig.index("endmenu")
    ours = "mm/contiguitas/border.c"
    assert (tree / ours).read_text() == (KERNEL / "src" / ours).read_text()
    # What asks nothing that must be corrected stays as it is.
    assert (tree / "mm/migrate.c").read_text() == TREE["mm/migrate.c"]


def test_a_trial_writes_nothing(tree):
    done = place("--check", tree)
    assert done.returncode == 0, done.stderr
    assert contents(tree) == TREE


def test_each_kernel_hook_without_a_place_is_named_and_nothing_is_written(tree):
    path = tree / "mm/page_alloc.c"
    path.write_text(path.read_text().replace("unusable_free;", "nothing;"))
    (tree / "mm/vmscan.c").write_text("#include <linux/mm.h>\n")
    before = contents(tree)
    done = place(tree)
    assert done.returncode == 1
    assert "watermarks count what a request may use" in done.stderr
    assert "__zone_watermark_unusable_free()" in done.stderr
    assert "background reclaim looks after the movable region" in done.stderr
    assert "pgdat_balanced() " in done.stderr
    assert "direct reclaim" not in done.stderr
    assert contents(tree) == before


def test_two_places_are_one_too_many(tree):
    path = tree / "mm/sparse.c"
    path.write_text(path.read_text().replace("\tmemb", "\tmemblocks_present();\n\tmemb"))
    done = place(tree)
    assert done.returncode == 1
    assert "sparse_init has the anchor 2 times" in done.stderr


def test_a_tree_is_changed_only_once(tree):
    assert place(tree).returncode == 0
    before = contents(tree)
    done = place(tree)
    assert done.returncode == 1
    assert "has Contiguitas already" in done.stderr
    assert contents(tree) == before


def test_no_kernel_tree(tmp_path):
    done = place(tmp_path)
    assert done.returncode == 1
    assert (
        done.stderr == f"place: {tmp_path} is not a Linux source tree: it has no mm/page_alloc.c\n"
    )
