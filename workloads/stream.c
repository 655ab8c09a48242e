/*
 * stream: four passes over three long arrays, the access pattern that is
 * all bandwidth: each page is used completely and once, so TLB misses are
 * few and regular.
 *
 * Kernels, initial values, the doubling of `a` before the first pass, and
 * the validation are those of J. D. McCalpin's STREAM (C version 5.10): the
 * same operations on three scalars say what every element must be, and the
 * average relative error of each array must stay below 1e-13.
 */
#include "common.h"

#define SCALAR 3.0
#define TOLERANCE 1e-13 /* STREAM's epsilon for double */

struct arrays {
    double *a, *b, *c;
    uint64_t length;
};

static void initialize(struct arrays s)
{
    for (uint64_t i = 0; i < s.length; i++) {
        s.a[i] = 1.0;
        s.b[i] = 2.0;
        s.c[i] = 0.0;
    }
    for (uint64_t i = 0; i < s.length; i++)
        s.a[i] = 2.0 * s.a[i];
}

/* The kernels take plain pointers that may not alias, as STREAM's arrays. */
static void copy(double *restrict c, const double *restrict a, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        c[i] = a[i];
}

static void scale(double *restrict b, const double *restrict c, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        b[i] = SCALAR * c[i];
}

static void add(double *restrict c, const double *restrict a, const double *restrict b,
                uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        c[i] = a[i] + b[i];
}

static void triad(double *restrict a, const double *restrict b, const double *restrict c,
                  uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        a[i] = b[i] + SCALAR * c[i];
}

static void validate(const char *name, const double *array, uint64_t length, double expected)
{
    double error = 0.0;
    for (uint64_t i = 0; i < length; i++)
        error += fabs(array[i] - expected);
    error /= (double)length * expected;
    if (!(error <= TOLERANCE))
        fail("validation failed: average relative error of array %s is %g, above %g", name, error,
             TOLERANCE);
    printf("%s: every element %.6e\n", name, expected);
}

int main(int argc, char **argv)
{
    uint64_t size = 32 * MIB, iterations = 10;
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, sizeof(double), TIB, "bytes of each of the three arrays"},
        /* More would overflow: a grows by 15 an iteration. */
        {"iterations", OPTION_COUNT, &iterations, 1, 250, "times each kernel runs"},
    };
    PARSE_OPTIONS(argc, argv, "Copy, scale, add and triad on long arrays (STREAM).", options);

    struct arrays s = {.length = size / sizeof(double)};
    s.a = allocate(s.length, sizeof(double));
    s.b = allocate(s.length, sizeof(double));
    s.c = allocate(s.length, sizeof(double));
    initialize(s);
    double a = 2.0, b = 2.0, c = 0.0;
    for (uint64_t i = 0; i < iterations; i++) {
        copy(s.c, s.a, s.length);
        scale(s.b, s.c, s.length);
        add(s.c, s.a, s.b, s.length);
        triad(s.a, s.b, s.c, s.length);
        c = a;
        b = SCALAR * c;
        c = a + b;
        a = b + SCALAR * c;
    }
    printf("stream: %" PRIu64 " elements an array, %" PRIu64 " iterations\n", s.length, iterations);
    validate("a", s.a, s.length, a);
    validate("b", s.b, s.length, b);
    validate("c", s.c, s.length, c);
    printf("validation: passed\n");
    free(s.a);
    free(s.b);
    free(s.c);
    return finish();
}
