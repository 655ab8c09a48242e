/*
 * neutrons: look-ups of macroscopic cross sections, the kernel of Monte
 * Carlo neutron transport that XSBench isolates (Tramm et al., "XSBench: The
 * Development and Verification of a Performance Abstraction for Monte Carlo
 * Reactor Analysis", PHYSOR 2014), with its unionized energy grid (Leppänen,
 * Annals of Nuclear Energy 36(7), 2009).
 *
 * Each nuclide has a grid of energies with five cross sections. The union of
 * all energies is one sorted grid, each point with a row that holds every
 * nuclide's index at that energy. A look-up takes a random energy and
 * material, searches the union, and interpolates in the grid of each of the
 * material's nuclides. Materials, their probabilities and numbers of
 * nuclides are those of the Hoogenboom-Martin reactor. Energies of a nuclide
 * are spread evenly with jitter, cross sections and concentrations random.
 *
 * Validation repeats some look-ups by searching each nuclide's own grid; the
 * result must be the same bits.
 */
#include "common.h"

#include <pthread.h>

#define NUCLIDES 355
#define SECTIONS 5 /* total, elastic, absorption, fission, nu-fission */
#define CHECKED 64 /* one look-up of these many is repeated */

struct point {
    double energy;
    double section[SECTIONS];
};

struct grids {
    uint64_t points;     /* of each nuclide */
    struct point *point; /* nuclide after nuclide */
    double *energy;      /* the union, sorted */
    uint32_t *index;     /* for each of its points, an index for each nuclide */
};

struct material {
    double probability;
    uint32_t nuclides;
    uint32_t nuclide[NUCLIDES];
    double concentration[NUCLIDES];
};

/* Fuel, cladding, cold and hot water, vessel, reflectors, plates, nozzles, assembly ends. */
static const struct {
    double probability;
    uint32_t nuclides;
} reactor[] = {
    {0.140, 321}, {0.052, 5},  {0.275, 4},  {0.134, 4},  {0.154, 27}, {0.064, 21},
    {0.066, 21},  {0.055, 21}, {0.008, 21}, {0.015, 21}, {0.025, 9},  {0.012, 9},
};
#define MATERIALS (sizeof reactor / sizeof reactor[0])

struct sample {
    double energy;
    uint32_t nuclide;
};

static int by_energy(const void *a, const void *b)
{
    double first = ((const struct sample *)a)->energy, second = ((const struct sample *)b)->energy;
    return (first > second) - (first < second);
}

/* Point `i` of each nuclide lies in the i-th part of (0, 1): parts can be sorted one by one. */
static void unite(struct grids *grids)
{
    uint32_t now[NUCLIDES] = {0};
    bool seen[NUCLIDES] = {false};
    uint64_t at = 0;
    for (uint64_t part = 0; part < grids->points; part++) {
        struct sample sample[NUCLIDES];
        for (uint32_t n = 0; n < NUCLIDES; n++)
            sample[n] = (struct sample){grids->point[n * grids->points + part].energy, n};
        qsort(sample, NUCLIDES, sizeof *sample, by_energy);
        for (uint32_t k = 0; k < NUCLIDES; k++, at++) {
            uint32_t nuclide = sample[k].nuclide;
            /* The last point ends the last interval, which begins one before. */
            if (seen[nuclide] && now[nuclide] + 2 < grids->points)
                now[nuclide]++;
            seen[nuclide] = true;
            grids->energy[at] = sample[k].energy;
            memcpy(grids->index + at * NUCLIDES, now, sizeof now);
        }
    }
}

static struct grids new_grids(uint64_t points, uint64_t *random)
{
    struct grids grids = {.points = points};
    grids.point = allocate(NUCLIDES * points, sizeof *grids.point);
    grids.energy = allocate(NUCLIDES * points, sizeof *grids.energy);
    grids.index = allocate(NUCLIDES * points, NUCLIDES * sizeof *grids.index);
    for (uint64_t i = 0; i < NUCLIDES * points; i++) {
        struct point *point = &grids.point[i];
        point->energy = ((double)(i % points) + random_real(random)) / (double)points;
        for (int s = 0; s < SECTIONS; s++)
            point->section[s] = random_real(random);
    }
    unite(&grids);
    return grids;
}

/* Distinct nuclides for each material, the first of a shuffled list. */
static struct material *new_materials(uint64_t *random)
{
    struct material *materials = allocate_zeroed(MATERIALS, sizeof *materials);
    for (size_t m = 0; m < MATERIALS; m++) {
        struct material *material = &materials[m];
        material->probability = reactor[m].probability;
        material->nuclides = reactor[m].nuclides;
        for (uint32_t n = 0; n < NUCLIDES; n++) {
            material->nuclide[n] = n;
            material->concentration[n] = random_real(random);
        }
        for (uint32_t n = 0; n < material->nuclides; n++) {
            uint32_t other = n + (uint32_t)random_below(random, NUCLIDES - n);
            uint32_t nuclide = material->nuclide[n];
            material->nuclide[n] = material->nuclide[other];
            material->nuclide[other] = nuclide;
        }
    }
    return materials;
}

/* The last point at most at `energy`, and 0 if there is none. */
static uint64_t search_union(const struct grids *grids, double energy)
{
    uint64_t low = 0, length = NUCLIDES * grids->points;
    while (length > 1) {
        uint64_t half = length / 2;
        if (grids->energy[low + half] <= energy)
            low += half;
        length -= half;
    }
    return low;
}

/* The same in a nuclide's own grid; intervals begin before the last point. */
static uint64_t search_nuclide(const struct grids *grids, uint32_t nuclide, double energy)
{
    const struct point *point = grids->point + nuclide * grids->points;
    uint64_t found = 0;
    while (found + 2 < grids->points && point[found + 1].energy <= energy)
        found++;
    return found;
}

static void add_nuclide(const struct grids *grids, uint32_t nuclide, uint64_t at, double energy,
                        double concentration, double *sum)
{
    const struct point *low = grids->point + nuclide * grids->points + at;
    const struct point *high = low + 1;
    double part = (high->energy - energy) / (high->energy - low->energy);
    for (int s = 0; s < SECTIONS; s++)
        sum[s] += concentration * (high->section[s] - part * (high->section[s] - low->section[s]));
}

__attribute__((noinline)) static void
look_up(const struct grids *grids, const struct material *material, double energy, double *sum)
{
    const uint32_t *row = grids->index + search_union(grids, energy) * NUCLIDES;
    memset(sum, 0, SECTIONS * sizeof *sum);
    for (uint32_t n = 0; n < material->nuclides; n++) {
        uint32_t nuclide = material->nuclide[n];
        add_nuclide(grids, nuclide, row[nuclide], energy, material->concentration[n], sum);
    }
}

static void check(const struct grids *grids, const struct material *material, double energy,
                  const double *found)
{
    double sum[SECTIONS] = {0};
    for (uint32_t n = 0; n < material->nuclides; n++) {
        uint32_t nuclide = material->nuclide[n];
        add_nuclide(grids, nuclide, search_nuclide(grids, nuclide, energy), energy,
                    material->concentration[n], sum);
    }
    if (memcmp(sum, found, sizeof sum) != 0)
        fail("validation failed: cross sections at energy %.6f differ", energy);
}

struct share {
    pthread_t thread;
    const struct grids *grids;
    const struct material *materials;
    uint64_t lookups, random;
    bool verify;
    uint64_t checksum; /* result */
};

__attribute__((noinline)) static void *transport(void *argument)
{
    struct share *share = argument;
    for (uint64_t i = 0; i < share->lookups; i++) {
        double energy = random_real(&share->random), dice = random_real(&share->random);
        size_t m = 0;
        while (m + 1 < MATERIALS && dice >= share->materials[m].probability)
            dice -= share->materials[m++].probability;
        double sum[SECTIONS];
        look_up(share->grids, &share->materials[m], energy, sum);
        if (share->verify && i % CHECKED == 0)
            check(share->grids, &share->materials[m], energy, sum);
        uint64_t bits[SECTIONS];
        memcpy(bits, sum, sizeof bits);
        for (int s = 0; s < SECTIONS; s++)
            share->checksum += mix64(bits[s] + (uint64_t)s);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t points = 50, lookups = 50000, seed = 1, threads = 1;
    bool no_verify = false;
    const struct option_spec options[] = {
        {"points", OPTION_COUNT, &points, 2, 10000000, "energies of each of 355 nuclides"},
        {"lookups", OPTION_COUNT, &lookups, 0, UINT64_MAX, "look-ups"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of data and look-ups"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads that look up"},
        {"no-verify", OPTION_FLAG, &no_verify, 0, 0, "skip verification"},
    };
    PARSE_OPTIONS(argc, argv, "Look-ups of neutron cross sections.", options);

    uint64_t random = mix64(seed), checksum = 0;
    struct grids grids = new_grids(points, &random);
    struct material *materials = new_materials(&random);
    struct share *shares = allocate_zeroed(threads, sizeof *shares);
    for (uint64_t t = 0; t < threads; t++) {
        struct share *share = &shares[t];
        *share = (struct share){.grids = &grids, .materials = materials, .verify = !no_verify};
        share->lookups = lookups / threads + (t < lookups % threads);
        share->random = mix64(random + t);
        if (threads == 1)
            transport(share);
        else if ((errno = pthread_create(&share->thread, NULL, transport, share)) != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(errno));
    }
    for (uint64_t t = 0; t < threads; t++) {
        if (threads > 1)
            pthread_join(shares[t].thread, NULL);
        checksum += shares[t].checksum;
    }
    printf("neutrons: %d nuclides, %" PRIu64 " energies, %" PRIu64 " look-ups\n", NUCLIDES,
           NUCLIDES * points, lookups);
    printf("checksum: 0x%016" PRIx64 "\n", checksum);
    printf("validation: %s\n", no_verify ? "skipped" : "passed");
    free(shares);
    free(materials);
    free(grids.index);
    free(grids.energy);
    free(grids.point);
    return finish();
}
