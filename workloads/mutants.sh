#!/bin/sh
# Proves that each workload's validation can fail: breaks the computation by
# one edit, and expects the program to exit 1 with "validation failed".
set -u
cd "$(dirname "$0")" || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cp common.h "$scratch"
count=0

# mutant PROGRAM SED-EDIT OPTION...
mutant() {
    program=$1 edit=$2
    shift 2
    sed "$edit" "$program.c" >"$scratch/$program.c"
    if cmp -s "$program.c" "$scratch/$program.c"; then
        echo "mutants: $program: nothing matches $edit" >&2
        exit 1
    fi
    ${CC:-gcc} -O2 -ffp-contract=off -pthread "$scratch/$program.c" -o "$scratch/$program" -lm ||
        exit 1
    timeout 60 "$scratch/$program" "$@" >"$scratch/output" 2>&1
    status=$?
    if [ "$status" != 1 ] || ! grep -q 'validation failed' "$scratch/output"; then
        echo "mutants: $program: $edit went unnoticed (exit status $status):" >&2
        cat "$scratch/output" >&2
        exit 1
    fi
    count=$((count + 1))
}

# One addition is another.
mutant rounds 's/place) % words\], 1,/place) % words], 1 + (i == 7),/' --rounds 1
# One update is lost.
mutant gups 's/for (uint64_t i = 0; i < share->count; i++)/static int calls; for (uint64_t i = calls++ == 0; i < share->count; i++)/' --size 1M
# A kernel leaves out the last element; a kernel computes something else.
mutant stream '/^static void add/,/^}/s/i < length/i < length - 1/' --size 1M
mutant stream 's/SCALAR \* c\[i\];/2.0 * c[i];/' --size 1M
# The matrix is not symmetric; a step of the method is wrong.
mutant cg 's/{j, i, -weight}/{j, i, -2 * weight}/' --rows 1000
mutant cg 's/double beta = rho \/ previous/double beta = 0.5/' --rows 1000
# The exact answer is slightly another.
mutant cg 's/diagonal\[i\] = shift/diagonal[i] = shift * 1.000001/' --rows 1000
# A derivative is wrong; an elimination leaves out a row; a sweep is left out;
# the right-hand side is not that of the equations; the start is the solution.
mutant bt 's/f\[1 + d\]\[1 + m\] -= PRESSURE/f[1 + d][1 + m] += PRESSURE/' --size 12
mutant bt 's/2.0 \* (1.0 - CONDUCTION) \* kinetic/(1.0 - CONDUCTION) * kinetic/' --size 12
mutant bt 's/if (r == p)/if (r == p || r + p == 7)/' --size 12
mutant bt 's/-central \* line->inviscid/central * line->inviscid/' --size 12
mutant bt 's/\[m\] -= DISSIPATION/[m] += DISSIPATION/' --size 12
mutant bt '/^    sweep_y(g, line);/d' --size 12
mutant bt 's/central \* (after\[m\] - before\[m\]);/0.0;/' --size 12
mutant bt 's/set(g, DISTURBANCE);/set(g, 0.0);/' --size 12
# Check 1: parents in a circle. Checks 3 and 2: depth first. Check 4: a search
# that stops early. Check 5: parents that are not neighbors.
mutant bfs 's/^        search(.*/& for (uint32_t v = 0, a = NONE; v < vertices; v++) if (v != root \&\& parent[v] != NONE) { if (a == NONE) a = v; else { parent[a] = v; parent[v] = a; break; } }/' --scale 10
mutant bfs 's/uint32_t u = queue\[head++\]/uint32_t u = queue[--tail]/' --scale 10
mutant bfs 's/while (head < tail)/while (head < tail \&\& head < 3)/' --scale 10
mutant bfs 's/^        search(.*/& for (uint32_t v = 0; v < vertices; v++) if (parent[v] != NONE) parent[v] = root;/' --scale 10
# A value is damaged, a deletion forgets the item's chain, a set is not
# stored, an item is left over.
mutant kv 's/    server_set(client->table, item);/    item->words[0] ^= length == 100; &/' --keys 5000 --operations 20000
mutant kv 's/\*link = old->next;/*link = NULL;/' --keys 1000 --operations 20000
mutant kv 's/    server_set(client->table, item);/    if (client->sets % 100 != 99) &/' --keys 1000 --operations 20000
mutant kv 's/        \*link = old->next;/        (void)0;/' --keys 1000 --operations 20000
mutant kv 's/    uint64_t items = free_table/    struct item *extra = calloc(1, sizeof *extra); extra->next = table->bucket[0]; table->bucket[0] = extra; &/' --keys 4 --operations 0
mutant random 's/sum += \*(const volatile/sum += 1 + *(const volatile/' --size 4M --reads 1000
mutant random 's/= mix64(page);$/= page;/' --size 4M --reads 10000
# A page has another number; growth is forgotten.
mutant bloat 's/PAGE) = page + 1;/PAGE) = page;/' --size 4M --reads 1000
mutant bloat 's/(more + page \* PAGE) = page;/(more + page * PAGE) = 0;/' --size 4M --reads 10 --grow 2M
mutant sparse 's/= page + 1;/= page;/' --size 4M --stride 7
# An entry is damaged when it is replaced, or takes the key of another.
mutant waves 's/            \*entry = make(key, bytes, random);/& (*entry)->word[0]++;/' --entries 500
mutant waves 's/^        present = left;/        present = left; if (wave == 1) entries[0]->key = 3;/' --entries 500
# A look-up is left out; an element has the key of another.
mutant hashjoin 's/element->key != 0/& \&\& i % 1000 != 7/' --heads 10000 --rows 20000
mutant hashjoin 's/->key = i + 1;/->key = i + 1 + (i == 77);/' --heads 1000 --rows 20000
# A search takes the wrong child; a split loses a record; keys that do not ascend.
mutant btree 's/node->key\[rank\] <= key/node->key[rank] < key/' --keys 10000 --lookups 20000
mutant btree 's/right->count = leaf->count - kept;/right->count = leaf->count - kept - 1;/' --keys 10000 --lookups 0
mutant btree 's/leaf->key\[at\] = key;/leaf->key[at] = record->element->number == 77 ? UINT64_MAX : key;/' --keys 10000 --lookups 0
# A wire is measured wrongly; two elements get one place.
mutant anneal 's/i < element->outputs.count; i++) {$/i + 1 < element->outputs.count; i++) {/' --elements 5000 --moves 50000
mutant anneal 's/return 2 \* wires/return wires/' --elements 20 --moves 50000
mutant anneal 's/        __atomic_store_n(&b->place, .*//' --elements 5000 --moves 50000
# An index is one too small; the search in the union ends one too early.
mutant neutrons 's/now\[nuclide\]++;/now[nuclide] += nuclide != 7;/' --points 20 --lookups 20000
mutant neutrons 's/grids->energy\[low + half\] <= energy/grids->energy[low + half] < energy - 0.01/' --points 20 --lookups 20000
echo "mutants: $count, all noticed"
