/*
 * cg: conjugate gradients on a random sparse matrix, the access pattern of
 * sparse solvers: long streams of matrix entries, and with each a gather
 * from a vector at a random place.
 *
 * Structure and reporting follow the CG kernel of the NAS Parallel
 * Benchmarks (Bailey et al., RNR-94-007, section 2.4): inverse power
 * iteration finds the smallest eigenvalue of a symmetric positive definite
 * matrix; each outer iteration solves A z = x with 25 steps of conjugate
 * gradients and goes on with x = z / |z|.
 *
 * The generator is our own, so that the answer is known exactly rather than
 * from a table of reference values: A = shift * I + L, where L is the
 * Laplacian of a random weighted graph (a ring, which connects it, and
 * `--entries` random neighbors drawn by each row). L is positive
 * semidefinite and maps constant vectors, and only those, to zero; hence A
 * is positive definite, its smallest eigenvalue is the shift, and x must end
 * constant. All sums are in a fixed order: output depends on options alone.
 */
#include "common.h"

#define EIGENVALUE_TOLERANCE 1e-10 /* relative; NPB's for its zeta */
#define RESIDUAL_TOLERANCE 1e-8    /* |x - A z| / |x| after the last solve */
#define VECTOR_TOLERANCE 1e-6      /* of each element of the eigenvector, relative */

/* Compressed sparse rows: entries of row i are at [start[i], start[i + 1]). */
struct matrix {
    uint64_t rows, entries;
    uint64_t *start;
    uint32_t *column;
    double *value;
};

struct entry {
    uint32_t row, column;
    double value;
};

static struct matrix new_matrix(uint64_t rows, uint64_t entries)
{
    return (struct matrix){
        .rows = rows,
        .entries = entries,
        .start = allocate_zeroed(rows + 1, sizeof(uint64_t)),
        .column = allocate(entries, sizeof(uint32_t)),
        .value = allocate(entries, sizeof(double)),
    };
}

static void free_matrix(struct matrix a)
{
    free(a.start);
    free(a.column);
    free(a.value);
}

/* Entries into rows by counting; within a row they keep their order. */
static struct matrix gather_rows(const struct entry *entry, uint64_t rows, uint64_t entries)
{
    struct matrix a = new_matrix(rows, entries);
    uint64_t *cursor = allocate(rows, sizeof *cursor);
    for (uint64_t k = 0; k < entries; k++)
        a.start[entry[k].row + 1]++;
    for (uint64_t i = 0; i < rows; i++) {
        a.start[i + 1] += a.start[i];
        cursor[i] = a.start[i];
    }
    for (uint64_t k = 0; k < entries; k++) {
        uint64_t place = cursor[entry[k].row]++;
        a.column[place] = entry[k].column;
        a.value[place] = entry[k].value;
    }
    free(cursor);
    return a;
}

/* As gather_rows, but with the columns of each row in ascending order. */
static struct matrix gather_sorted(struct entry *entry, uint64_t rows, uint64_t entries)
{
    /* Reading the rows of a symmetric matrix in order writes sorted columns. */
    struct matrix unsorted = gather_rows(entry, rows, entries);
    for (uint64_t i = 0, k = 0; i < rows; i++)
        for (; k < unsorted.start[i + 1]; k++)
            entry[k] = (struct entry){unsorted.column[k], (uint32_t)i, unsorted.value[k]};
    free_matrix(unsorted);
    return gather_rows(entry, rows, entries);
}

static struct matrix generate(uint64_t rows, uint64_t draws, double shift, uint64_t seed)
{
    uint64_t edges = rows * (draws + 1);
    uint64_t entries = 2 * edges + rows;
    struct entry *entry = allocate(entries, sizeof *entry);
    double *diagonal = allocate(rows, sizeof *diagonal);
    uint64_t random = mix64(seed);
    uint64_t count = 0;
    for (uint64_t i = 0; i < rows; i++)
        diagonal[i] = shift;
    for (uint64_t e = 0; e < edges; e++) {
        uint32_t i = (uint32_t)(e % rows);
        /* The first round is the ring; an edge never joins a row to itself. */
        uint64_t distance = e < rows ? 1 : 1 + random_below(&random, rows - 1);
        uint32_t j = (uint32_t)((i + distance) % rows);
        double weight = 1.0 - random_real(&random);
        entry[count++] = (struct entry){i, j, -weight};
        entry[count++] = (struct entry){j, i, -weight};
        diagonal[i] += weight;
        diagonal[j] += weight;
    }
    for (uint32_t i = 0; i < rows; i++)
        entry[count++] = (struct entry){i, i, diagonal[i]};
    struct matrix a = gather_sorted(entry, rows, entries);
    free(entry);
    free(diagonal);
    return a;
}

static void multiply(double *restrict y, const struct matrix *a, const double *restrict x)
{
    for (uint64_t i = 0; i < a->rows; i++) {
        double sum = 0.0;
        for (uint64_t k = a->start[i]; k < a->start[i + 1]; k++)
            sum += a->value[k] * x[a->column[k]];
        y[i] = sum;
    }
}

static double dot(const double *x, const double *y, uint64_t length)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < length; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Vectors of length `rows` that a solve works on. */
struct solver {
    double *x, *z, *r, *p, *q;
};

/*
 * Conjugate gradients for A z = x from z = 0. Returns |x - A z| / |x|,
 * computed from A and not from the recurrence that CG itself keeps.
 */
__attribute__((noinline)) static double solve(const struct matrix *a, struct solver s,
                                              uint64_t steps)
{
    uint64_t n = a->rows;
    double norm = dot(s.x, s.x, n);
    double rho = norm;
    for (uint64_t i = 0; i < n; i++) {
        s.z[i] = 0.0;
        s.r[i] = s.p[i] = s.x[i];
    }
    /* Beyond 1e-15 of |x| there is only rounding, and in the end 0 / 0. */
    for (uint64_t step = 0; step < steps && rho > 1e-30 * norm; step++) {
        multiply(s.q, a, s.p);
        double alpha = rho / dot(s.p, s.q, n);
        for (uint64_t i = 0; i < n; i++) {
            s.z[i] += alpha * s.p[i];
            s.r[i] -= alpha * s.q[i];
        }
        double previous = rho;
        rho = dot(s.r, s.r, n);
        double beta = rho / previous;
        for (uint64_t i = 0; i < n; i++)
            s.p[i] = s.r[i] + beta * s.p[i];
    }
    multiply(s.q, a, s.z);
    double error = 0.0;
    for (uint64_t i = 0; i < n; i++)
        error += (s.x[i] - s.q[i]) * (s.x[i] - s.q[i]);
    return sqrt(error / norm);
}

static void validate(const double *x, uint64_t rows, double shift, double eigenvalue,
                     double residual)
{
    /* Written so that a NaN fails too. */
    if (!(residual <= RESIDUAL_TOLERANCE))
        fail("validation failed: residual %g is above %g", residual, RESIDUAL_TOLERANCE);
    if (!(fabs(eigenvalue - shift) <= EIGENVALUE_TOLERANCE * shift))
        fail("validation failed: eigenvalue %.17g, exact %.17g", eigenvalue, shift);
    double element = 1.0 / sqrt((double)rows);
    for (uint64_t i = 0; i < rows; i++)
        if (!(fabs(fabs(x[i]) - element) <= VECTOR_TOLERANCE * element) || x[i] * x[0] < 0)
            fail("validation failed: eigenvector element %" PRIu64 " is %.17g, exact %.17g", i,
                 x[i], copysign(element, x[0]));
}

int main(int argc, char **argv)
{
    uint64_t rows = 75000, draws = 8, outer = 8, inner = 25, seed = 1;
    double shift = 0.1; /* NPB's rcond, which is its smallest eigenvalue too */
    const struct option_spec options[] = {
        {"rows", OPTION_COUNT, &rows, 2, UINT32_MAX, "rows of the matrix"},
        /* With fewer of these three, validation would find x not converged yet. */
        {"entries", OPTION_COUNT, &draws, 6, 4096, "random neighbors that each row draws"},
        {"outer", OPTION_COUNT, &outer, 8, UINT64_MAX, "power iterations (solves)"},
        {"inner", OPTION_COUNT, &inner, 10, UINT64_MAX, "conjugate gradient steps a solve"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of the matrix and the first vector"},
    };
    PARSE_OPTIONS(argc, argv, "Smallest eigenvalue of a sparse matrix (like NPB CG).", options);

    struct matrix a = generate(rows, draws, shift, seed);
    struct solver s = {
        allocate(rows, sizeof(double)), allocate(rows, sizeof(double)),
        allocate(rows, sizeof(double)), allocate(rows, sizeof(double)),
        allocate(rows, sizeof(double)),
    };
    uint64_t random = ~mix64(seed);
    for (uint64_t i = 0; i < rows; i++)
        s.x[i] = random_real(&random);

    printf("cg: %" PRIu64 " rows, %" PRIu64 " entries\n", rows, a.entries);
    double eigenvalue = 0.0, residual = 0.0;
    for (uint64_t iteration = 1; iteration <= outer; iteration++) {
        residual = solve(&a, s, inner);
        eigenvalue = dot(s.x, s.x, rows) / dot(s.x, s.z, rows);
        double norm = sqrt(dot(s.z, s.z, rows));
        for (uint64_t i = 0; i < rows; i++)
            s.x[i] = s.z[i] / norm;
        printf("iteration %" PRIu64 ": eigenvalue %.10f\n", iteration, eigenvalue);
    }
    validate(s.x, rows, shift, eigenvalue, residual);
    printf("validation: passed, the exact eigenvalue is %.10f\n", shift);
    free_matrix(a);
    free(s.x);
    free(s.z);
    free(s.r);
    free(s.p);
    free(s.q);
    return finish();
}
