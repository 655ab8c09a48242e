/*
 * anneal: places a netlist on a chip by simulated annealing, as canneal of
 * PARSEC does (Bienia et al., "The PARSEC Benchmark Suite: Characterization
 * and Architectural Implications", PACT 2008, section 3.3): two random
 * elements exchange their places if that shortens the wires, or with a
 * probability that falls with the temperature if it does not.
 *
 * Elements and places are two large arrays; the lists of an element's inputs
 * and outputs grow by doubling, among the names that the netlist is read by.
 * To judge a move, the program reads the place of each neighbor of both
 * elements: pointers to anywhere.
 * One element of each pair is kept for the next move.
 *
 * canneal reads these pointers by a locked compare-and-exchange (AtomicPtr::Get
 * with threads, atomic_load_acq_ptr in its atomic/atomic.h): such reads wait
 * for each other, and fetch the line for writing. So do ours.
 *
 * An element's inputs are random others, their number uniform about a mean.
 * As in canneal, wires between both elements of a pair do not enter the
 * judgement rightly; they do enter the sum. One thread, so that the result
 * is exact: the length of all wires, added up from the changes, must be the
 * one counted at the end, and each place must have one element.
 */
#include "common.h"

struct place {
    int32_t x, y;
};

struct list {
    struct element **of;
    uint64_t count, capacity;
};

/* Sizes as of canneal's C++: two vectors, a pointer, a string. */
struct element {
    struct list inputs, outputs;
    struct place *place;
    char name[32];
};

/* What canneal's map holds for each name; moves do not touch it. */
struct named {
    char links[32], name[32];
    struct element *element;
};

struct netlist {
    struct element *element;
    struct place *place;
    struct named **named;
    uint64_t elements, columns;
};

static void push(struct list *list, struct element *element)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 1 : 2 * list->capacity;
        struct element **of = allocate(list->capacity, sizeof *of);
        if (list->count > 0)
            memcpy(of, list->of, list->count * sizeof *of);
        free(list->of);
        list->of = of;
    }
    list->of[list->count++] = element;
}

/* Random other elements as inputs of each, which is one of their outputs. */
static void connect(struct netlist *netlist, uint64_t mean, uint64_t *random)
{
    for (uint64_t i = 0; i < netlist->elements; i++) {
        struct element *element = &netlist->element[i];
        netlist->named[i] = allocate(1, sizeof(struct named));
        netlist->named[i]->element = element;
        uint64_t inputs = 1 + random_below(random, 2 * mean - 1);
        for (uint64_t k = 0; k < inputs; k++) {
            uint64_t other = i + 1 + random_below(random, netlist->elements - 1);
            struct element *input = &netlist->element[other % netlist->elements];
            push(&element->inputs, input);
            push(&input->outputs, element);
        }
    }
}

static struct netlist new_netlist(uint64_t elements, uint64_t mean, uint64_t *random)
{
    struct netlist netlist = {.elements = elements};
    netlist.columns = (uint64_t)ceil(sqrt((double)elements));
    netlist.element = allocate_zeroed(elements, sizeof *netlist.element);
    netlist.place = allocate(elements, sizeof *netlist.place);
    netlist.named = allocate(elements, sizeof *netlist.named);
    for (uint64_t i = 0; i < elements; i++) {
        netlist.place[i].x = (int32_t)(i % netlist.columns);
        netlist.place[i].y = (int32_t)(i / netlist.columns);
        netlist.element[i].place = &netlist.place[i];
        char *name = netlist.element[i].name;
        snprintf(name, sizeof netlist.element[i].name, "e%" PRIu64, i);
    }
    /* A random start: each element changes places with a later one. */
    for (uint64_t i = 0; i + 1 < elements; i++) {
        uint64_t other = i + random_below(random, elements - i);
        struct place *place = netlist.element[i].place;
        netlist.element[i].place = netlist.element[other].place;
        netlist.element[other].place = place;
    }
    connect(&netlist, mean, random);
    return netlist;
}

static int64_t distance(const struct place *a, const struct place *b)
{
    return labs((long)a->x - b->x) + labs((long)a->y - b->y);
}

/* The element's place, as another thread would have to read it. */
static struct place *place_of(struct element *element)
{
    struct place *none = NULL;
    __atomic_compare_exchange_n(&element->place, &none, NULL, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return none;
}

/* How much longer the element's wires get when it leaves `old` for `place`. */
static int64_t change(const struct element *element, const struct place *old,
                      const struct place *place)
{
    int64_t sum = 0;
    for (uint64_t i = 0; i < element->inputs.count; i++) {
        const struct place *other = place_of(element->inputs.of[i]);
        sum += distance(other, place) - distance(other, old);
    }
    for (uint64_t i = 0; i < element->outputs.count; i++) {
        const struct place *other = place_of(element->outputs.of[i]);
        sum += distance(other, place) - distance(other, old);
    }
    return sum;
}

/* Wires between `a` and `b` keep their length when these exchange places; change() of each says
 * that they get none. */
static int64_t between(const struct element *a, const struct element *b)
{
    int64_t wires = 0;
    for (uint64_t i = 0; i < a->inputs.count; i++)
        wires += a->inputs.of[i] == b;
    for (uint64_t i = 0; i < a->outputs.count; i++)
        wires += a->outputs.of[i] == b;
    return 2 * wires * distance(a->place, b->place);
}

struct moves {
    uint64_t count, a_step; /* moves, moves at one temperature */
    double temperature;
    uint64_t better, worse; /* results */
    int64_t length;
};

__attribute__((noinline)) static void anneal(struct netlist *netlist, struct moves *moves,
                                             uint64_t *random)
{
    struct element *kept = &netlist->element[random_below(random, netlist->elements)];
    double temperature = moves->temperature;
    for (uint64_t i = 0; i < moves->count; i++) {
        if (i % moves->a_step == 0)
            temperature /= 1.5;
        struct element *a = kept;
        struct element *b = &netlist->element[random_below(random, netlist->elements)];
        kept = b;
        if (a == b)
            continue;
        struct place *place_of_a = place_of(a), *place_of_b = place_of(b);
        int64_t longer = change(a, place_of_a, place_of_b) + change(b, place_of_b, place_of_a);
        if (longer >= 0 && random_real(random) >= exp(-(double)longer / temperature))
            continue;
        if (longer < 0)
            moves->better++;
        else
            moves->worse++;
        moves->length += longer + between(a, b);
        __atomic_store_n(&a->place, place_of_b, __ATOMIC_SEQ_CST);
        __atomic_store_n(&b->place, place_of_a, __ATOMIC_SEQ_CST);
    }
}

static int64_t length_of(const struct netlist *netlist)
{
    int64_t length = 0;
    for (uint64_t i = 0; i < netlist->elements; i++)
        for (uint64_t k = 0; k < netlist->element[i].inputs.count; k++)
            length += distance(netlist->element[i].place, netlist->element[i].inputs.of[k]->place);
    return length;
}

/* Each place has one element: overwrites the places as marks. */
static void check_places(struct netlist *netlist)
{
    for (uint64_t i = 0; i < netlist->elements; i++) {
        if (netlist->element[i].place->x < 0)
            fail("validation failed: two elements have one place");
        netlist->element[i].place->x = -1;
    }
}

int main(int argc, char **argv)
{
    uint64_t elements = 100000, inputs = 5, seed = 1;
    struct moves moves = {.count = 300000, .a_step = 15000, .temperature = 2000};
    bool no_verify = false;
    const struct option_spec options[] = {
        {"elements", OPTION_COUNT, &elements, 2, INT32_MAX, "elements of the netlist"},
        {"inputs", OPTION_COUNT, &inputs, 1, 1000, "mean inputs of an element"},
        {"moves", OPTION_COUNT, &moves.count, 0, UINT64_MAX, "moves that are tried"},
        {"step", OPTION_COUNT, &moves.a_step, 1, UINT64_MAX, "moves at one temperature"},
        {"temperature", OPTION_REAL, &moves.temperature, 1, 1000000000, "at the start"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of the netlist and the moves"},
        {"no-verify", OPTION_FLAG, &no_verify, 0, 0, "skip verification"},
    };
    PARSE_OPTIONS(argc, argv, "Placement of a netlist by simulated annealing.", options);

    uint64_t random = mix64(seed);
    struct netlist netlist = new_netlist(elements, inputs, &random);
    moves.length = no_verify ? 0 : length_of(&netlist);
    int64_t before = moves.length;
    anneal(&netlist, &moves, &random);
    printf("anneal: %" PRIu64 " elements, %" PRIu64 " moves\n", elements, moves.count);
    printf("accepted: %" PRIu64 " better, %" PRIu64 " worse\n", moves.better, moves.worse);
    if (no_verify) {
        printf("validation: skipped\n");
    } else {
        int64_t after = length_of(&netlist);
        if (after != moves.length)
            fail("validation failed: wires of %" PRId64 ", not %" PRId64, after, moves.length);
        check_places(&netlist);
        printf("validation: passed, wires of %" PRId64 ", before %" PRId64 "\n", after, before);
    }
    for (uint64_t i = 0; i < elements; i++) {
        free(netlist.element[i].inputs.of);
        free(netlist.element[i].outputs.of);
        free(netlist.named[i]);
    }
    free(netlist.named);
    free(netlist.element);
    free(netlist.place);
    return finish();
}
