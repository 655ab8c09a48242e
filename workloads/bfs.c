/*
 * bfs: breadth-first search of a Kronecker graph, the access pattern of
 * graph analytics: short runs of neighbors, each looked up at a random
 * place of the parent array.
 *
 * The rules are those of the Graph500 benchmark, version 2.0:
 *  - generator: 2^scale vertices, edge-factor edges for each, every edge
 *    placed by `scale` choices of a quadrant with A = 0.57, B = C = 0.19;
 *    then vertex names and the edge list are shuffled;
 *  - kernel 1 makes the edge list a graph (here compressed sparse rows);
 *  - kernel 2 searches from distinct random roots that have an edge other
 *    than a self-loop, and yields a parent for each vertex reached;
 *  - every tree passes the five checks of the specification's validation;
 *  - work counts as input edges inside the component searched, self-loops
 *    and repeated edges included.
 * One thread; Graph500 has 64 roots, the default here is 8 to stay short.
 */
#include "common.h"

#define A 0.57
#define B 0.19
#define C 0.19
#define NONE UINT32_MAX /* no vertex: `scale` is at most 31 */

struct edge {
    uint32_t u, v;
};

/* Neighbors of v are at [start[v], start[v + 1]); self-loops are left out. */
struct graph {
    uint64_t vertices;
    uint64_t *start;
    uint32_t *neighbor;
};

static struct edge kronecker_edge(uint64_t scale, uint64_t *random)
{
    struct edge edge = {0, 0};
    for (uint64_t bit = 0; bit < scale; bit++) {
        /* The quadrants' row first, then the column given the row. */
        bool lower = random_real(random) > A + B;
        bool right = random_real(random) > (lower ? C / (1 - (A + B)) : A / (A + B));
        edge.u |= (uint32_t)lower << bit;
        edge.v |= (uint32_t)right << bit;
    }
    return edge;
}

static struct edge *generate(uint64_t scale, uint64_t edges, uint64_t *random)
{
    uint64_t vertices = (uint64_t)1 << scale;
    uint32_t *name = allocate(vertices, sizeof *name);
    struct edge *edge = allocate(edges, sizeof *edge);
    for (uint64_t v = 0; v < vertices; v++) { /* a shuffle that grows (Fisher-Yates) */
        uint64_t other = random_below(random, v + 1);
        name[v] = name[other];
        name[other] = (uint32_t)v;
    }
    for (uint64_t e = 0; e < edges; e++) {
        struct edge new = kronecker_edge(scale, random);
        uint64_t other = random_below(random, e + 1);
        edge[e] = edge[other];
        edge[other] = (struct edge){name[new.u], name[new.v]};
    }
    free(name);
    return edge;
}

static struct graph build(const struct edge *edge, uint64_t edges, uint64_t vertices)
{
    struct graph g = {.vertices = vertices};
    g.start = allocate_zeroed(vertices + 1, sizeof *g.start);
    for (uint64_t e = 0; e < edges; e++)
        if (edge[e].u != edge[e].v) {
            g.start[edge[e].u + 1]++;
            g.start[edge[e].v + 1]++;
        }
    uint64_t *cursor = allocate(vertices, sizeof *cursor);
    for (uint64_t v = 0; v < vertices; v++) {
        g.start[v + 1] += g.start[v];
        cursor[v] = g.start[v];
    }
    g.neighbor = allocate(g.start[vertices], sizeof *g.neighbor);
    for (uint64_t e = 0; e < edges; e++)
        if (edge[e].u != edge[e].v) {
            g.neighbor[cursor[edge[e].u]++] = edge[e].v;
            g.neighbor[cursor[edge[e].v]++] = edge[e].u;
        }
    free(cursor);
    return g;
}

/* Fills `parent` (the root is its own); `queue` has room for all vertices. */
__attribute__((noinline)) static void search(const struct graph *g, uint32_t root, uint32_t *parent,
                                             uint32_t *queue)
{
    for (uint64_t v = 0; v < g->vertices; v++)
        parent[v] = NONE;
    uint64_t head = 0, tail = 0;
    parent[root] = root;
    queue[tail++] = root;
    while (head < tail) {
        uint32_t u = queue[head++];
        for (uint64_t k = g->start[u]; k < g->start[u + 1]; k++) {
            uint32_t v = g->neighbor[k];
            if (parent[v] == NONE) {
                parent[v] = u;
                queue[tail++] = v;
            }
        }
    }
}

/* ---- validation: from the parents and the input edges only ------------- */

/*
 * Check 1, the parents form a tree, without cycles. Fills `level` with each
 * vertex's distance from the root along the tree, NONE when not in it.
 */
static void find_levels(const uint32_t *parent, uint64_t vertices, uint32_t root, uint32_t *level)
{
    if (parent[root] != root)
        fail("validation failed: the root %" PRIu32 " is not its own parent", root);
    for (uint64_t v = 0; v < vertices; v++)
        level[v] = NONE;
    level[root] = 0;
    for (uint64_t v = 0; v < vertices; v++) {
        if (parent[v] == NONE)
            continue;
        uint32_t steps = 0;
        uint32_t u = (uint32_t)v;
        for (; level[u] == NONE; u = parent[u])
            if (parent[u] == NONE || steps++ == vertices)
                fail("validation failed: vertex %" PRIu64 " does not lead to the root", v);
        uint32_t distance = level[u] + steps;
        for (u = (uint32_t)v; level[u] == NONE; u = parent[u])
            level[u] = distance--;
    }
}

struct tree {
    uint64_t vertices, edges; /* reached; input edges with both ends reached */
    uint32_t depth;
};

/* `in_graph` is scratch space, one for each vertex. */
static struct tree validate(const struct edge *edge, uint64_t edges, const uint32_t *parent,
                            uint64_t vertices, uint32_t root, uint32_t *level, bool *in_graph)
{
    struct tree tree = {0, 0, 0};
    find_levels(parent, vertices, root, level);
    memset(in_graph, 0, vertices * sizeof *in_graph);
    for (uint64_t e = 0; e < edges; e++) {
        uint32_t u = edge[e].u, v = edge[e].v;
        /* Check 4: the tree spans the component, so no edge leaves it. */
        if ((level[u] == NONE) != (level[v] == NONE))
            fail("validation failed: the tree ends inside edge %" PRIu32 "-%" PRIu32, u, v);
        if (level[u] == NONE)
            continue;
        tree.edges++;
        /* Check 3: no input edge joins levels more than one apart. */
        if (level[u] > level[v] + 1 || level[v] > level[u] + 1)
            fail("validation failed: edge %" PRIu32 "-%" PRIu32 " joins levels %" PRIu32
                 " and %" PRIu32,
                 u, v, level[u], level[v]);
        in_graph[u] |= parent[u] == v;
        in_graph[v] |= parent[v] == u;
    }
    for (uint64_t v = 0; v < vertices; v++) {
        if (level[v] == NONE)
            continue;
        tree.vertices++;
        if (level[v] > tree.depth)
            tree.depth = level[v];
        if (v == root)
            continue;
        /* Check 2: tree edges join adjacent levels. */
        if (level[v] != level[parent[v]] + 1)
            fail("validation failed: vertex %" PRIu64 " is not one level below its parent", v);
        /* Check 5: tree edges are edges of the graph. */
        if (!in_graph[v])
            fail("validation failed: tree edge %" PRIu64 "-%" PRIu32 " is not in the graph", v,
                 parent[v]);
    }
    return tree;
}

int main(int argc, char **argv)
{
    uint64_t scale = 16, edge_factor = 16, roots = 8, seed = 1;
    const struct option_spec options[] = {
        {"scale", OPTION_COUNT, &scale, 1, 31, "logarithm of the number of vertices"},
        {"edge-factor", OPTION_COUNT, &edge_factor, 1, 1024, "edges for each vertex"},
        {"roots", OPTION_COUNT, &roots, 1, UINT64_MAX, "searches, as far as there are roots"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of the graph and the roots"},
    };
    PARSE_OPTIONS(argc, argv, "Breadth-first search of a Kronecker graph (Graph500).", options);

    uint64_t random = mix64(seed);
    uint64_t vertices = (uint64_t)1 << scale, edges = vertices * edge_factor;
    struct edge *edge = generate(scale, edges, &random);
    struct graph g = build(edge, edges, vertices);
    uint64_t eligible = 0;
    for (uint64_t v = 0; v < vertices; v++)
        eligible += g.start[v + 1] > g.start[v];
    printf("bfs: %" PRIu64 " vertices, %" PRIu64 " with neighbors, %" PRIu64 " edges\n", vertices,
           eligible, edges);

    uint32_t *parent = allocate(vertices, sizeof *parent);
    uint32_t *queue = allocate(vertices, sizeof *queue);
    uint32_t *level = allocate(vertices, sizeof *level);
    bool *scratch = allocate(vertices, sizeof *scratch);
    bool *used = allocate_zeroed(vertices, sizeof *used);
    uint64_t traversed = 0;
    for (uint64_t i = 0; i < roots && i < eligible; i++) {
        uint32_t root;
        do
            root = (uint32_t)random_below(&random, vertices);
        while (used[root] || g.start[root + 1] == g.start[root]);
        used[root] = true;
        search(&g, root, parent, queue);
        struct tree tree = validate(edge, edges, parent, vertices, root, level, scratch);
        printf("root %" PRIu32 ": %" PRIu64 " vertices reached, depth %" PRIu32 ", %" PRIu64
               " edges traversed\n",
               root, tree.vertices, tree.depth, tree.edges);
        traversed += tree.edges;
    }
    printf("validation: passed, %" PRIu64 " edges traversed\n", traversed);
    free(edge);
    free(g.start);
    free(g.neighbor);
    free(parent);
    free(queue);
    free(level);
    free(scratch);
    free(used);
    return finish();
}
