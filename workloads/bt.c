/*
 * bt: block-tridiagonal systems along the lines of a cube, the access pattern
 * of structured-grid solvers: the same arrays are swept along x, y and z. From
 * point to point a line goes on by 40 bytes, by a row, or by a plane, so along
 * y and z each step can touch another page.
 *
 * Structure follows the BT pseudo-application of the NAS Parallel Benchmarks
 * (Bailey et al., RNR-94-007, section 4): compressible flow with five unknowns
 * a point; a step computes the right-hand side from fluxes and fourth-order
 * dissipation, then solves (I - dt X)(I - dt Y)(I - dt Z) du = dt rhs, each
 * factor by block Gauss elimination of 5 x 5 blocks along every line, and adds
 * du. As in NPB 3.x, blocks and Jacobians are made for one line, and their
 * memory is used again for the next (NPB 2.x kept those of all points, 1000
 * bytes a point; version 3 came before the papers that we compare with). What
 * is large is nine arrays of the points, 168 bytes a point, one after the other
 * in one block of memory as in a Fortran common block, the first two dimensions
 * padded to odd sizes.
 *
 * Equations' constants and the solution are our own, so that the answer is
 * known: u* is a polynomial, the forcing is what makes it a fixed point of the
 * discrete equations, and from a disturbed start u must return to u*.
 * Every step must leave at most a given part of the error; blocks are compared
 * with differences of the right-hand side, and some lines' solutions put back
 * into their equations. Sums are in a fixed order: output depends on options
 * alone.
 *
 * With --planes a step is done on that many planes in each of its loops, not
 * on all. Each loop has planes of its own: in a whole step, what one loop
 * leaves in the caches is long gone when the next comes to a plane.
 */
#include "common.h"

#define GAMMA 1.4
#define PRESSURE (GAMMA - 1.0) /* of internal energy */
#define VISCOSITY 0.1
#define CONDUCTION GAMMA     /* gamma over the Prandtl number, which is 1 */
#define DIFFUSION 0.75       /* second-order, of every unknown */
#define DISSIPATION 0.25     /* fourth-order */
#define DISTURBANCE 0.1      /* of the start, at the center */
#define CHECKED_LINES 16     /* one in as many lines is put back into its equations */
#define LINE_TOLERANCE 1e-10 /* of a line's residual, relative */
#define BLOCK_TOLERANCE 1e-7 /* of a derivative, relative to a second difference */
#define STEP 0.02            /* in time */
/* What a step may leave of the error, until little is left: it is 0.70 for cubes of 6 to 80. */
#define LEFT 0.75
#define LITTLE 1e-6

enum { UNKNOWNS = 5, ENERGY = 4, X = 0, Y = 1, Z = 2 };

/* A short loop, written out: as NPB has them. */
#define EACH(m, first, end) _Pragma("GCC unroll 5") for (int m = (first); m < (end); m++)

typedef double vector[UNKNOWNS];
typedef double row[UNKNOWNS];
typedef row block[UNKNOWNS];

/* Fields of all points, and strides from a point to the next in x, y and z. */
struct grid {
    uint64_t size, planes, points, stride[3];
    double step;
    double *memory;
    double *velocity[3], *kinetic, *inverse, *square; /* w, |w|^2 / 2, 1 / rho, rho |w|^2 / 2 */
    vector *forcing, *u, *rhs;
    bool checks;
};

/* What the solution of one line needs. */
struct line {
    block *inviscid, *viscous, *below, *diagonal, *above;
    vector *given;
};

struct span {
    uint64_t first, end;
};

/* Loops of a step, in their order. */
enum loop { DERIVE, FORCE, FLUX_X, FLUX_Y, FLUX_Z, SCALE, SOLVE_X, SOLVE_Y, SOLVE_Z, ADD, LOOPS };

/* Planes that a loop works on: all inner ones, or some of its own. */
static struct span planes_of(const struct grid *g, enum loop loop)
{
    if (g->planes == 0)
        return (struct span){1, g->size - 1};
    uint64_t first = 1 + (g->size - 2 - g->planes) * loop / (LOOPS - 1);
    return (struct span){first, first + g->planes};
}

static uint64_t point(const struct grid *g, uint64_t i, uint64_t j, uint64_t k)
{
    return i + j * g->stride[Y] + k * g->stride[Z];
}

static struct grid new_grid(uint64_t size, uint64_t planes)
{
    uint64_t padded = size | 1;
    uint64_t points = padded * padded * size;
    struct grid g = {
        .size = size,
        .planes = planes,
        .points = points,
        .stride = {1, padded, padded * padded},
        .step = 1.0 / (double)(size - 1),
        .memory = allocate(points, (6 + 3 * UNKNOWNS) * sizeof(double)),
    };
    double *next = g.memory;
    for (int d = X; d <= Z; d++, next += points)
        g.velocity[d] = next;
    g.kinetic = next;
    g.inverse = next + points;
    g.square = next + 2 * points;
    g.forcing = (vector *)(next + 3 * points);
    g.u = g.forcing + points;
    g.rhs = g.u + points;
    return g;
}

static struct line new_line(uint64_t size)
{
    return (struct line){
        allocate(size, sizeof(block)), allocate(size, sizeof(block)),
        allocate(size, sizeof(block)), allocate(size, sizeof(block)),
        allocate(size, sizeof(block)), allocate(size, sizeof(vector)),
    };
}

static void free_line(struct line line)
{
    free(line.inviscid);
    free(line.viscous);
    free(line.below);
    free(line.diagonal);
    free(line.above);
    free(line.given);
}

/* ---- the solution that is known ----------------------------------------- */

/* Coefficients of s, s^2, s^3 and s^4 for each direction, and the constant. */
static const struct {
    double constant, power[3][4];
} SOLUTION[UNKNOWNS] = {
    {2.0, {{0.3, -0.2, 0.1, 0.2}, {-0.1, 0.4, -0.3, 0.1}, {0.2, 0.1, 0.2, -0.4}}},
    {1.0, {{0.2, 0.3, -0.4, 0.1}, {0.1, -0.2, 0.3, 0.2}, {-0.3, 0.2, 0.1, 0.1}}},
    {0.5, {{-0.2, 0.1, 0.3, 0.1}, {0.4, -0.1, -0.2, 0.2}, {0.1, 0.3, -0.2, 0.1}}},
    {0.8, {{0.1, 0.2, 0.1, -0.3}, {-0.2, 0.3, 0.1, 0.1}, {0.3, -0.1, 0.2, -0.2}}},
    {6.0, {{0.4, -0.3, 0.2, 0.3}, {0.2, 0.2, -0.1, 0.3}, {-0.2, 0.4, 0.3, -0.1}}},
};

static double part(int m, int direction, double s)
{
    const double *c = SOLUTION[m].power[direction];
    return s * (c[0] + s * (c[1] + s * (c[2] + s * c[3])));
}

/* u = u*, and in the cube u* (1 + a bump of this height), which is 0 on the faces. */
static void set(struct grid *g, double height)
{
    uint64_t n = g->size;
    vector *along[3];
    double *bump = allocate(n, sizeof *bump);
    for (int d = X; d <= Z; d++) {
        along[d] = allocate(n, sizeof(vector));
        for (uint64_t i = 0; i < n; i++)
            EACH (m, 0, UNKNOWNS)
                along[d][i][m] = part(m, d, (double)i * g->step);
    }
    for (uint64_t i = 0; i < n; i++)
        bump[i] = 4.0 * (double)i * g->step * (1.0 - (double)i * g->step);
    bump[n - 1] = 0.0;
    for (uint64_t k = 0; k < n; k++)
        for (uint64_t j = 0; j < n; j++)
            for (uint64_t i = 0; i < n; i++)
                EACH (m, 0, UNKNOWNS)
                    g->u[point(g, i, j, k)][m] =
                        (SOLUTION[m].constant + along[X][i][m] + along[Y][j][m] + along[Z][k][m]) *
                        (1.0 + height * bump[i] * bump[j] * bump[k]);
    for (int d = X; d <= Z; d++)
        free(along[d]);
    free(bump);
}

/* The root of the mean square of u - u*. */
static double error_of(const struct grid *g)
{
    uint64_t n = g->size;
    double sum = 0.0;
    for (uint64_t k = 0; k < n; k++)
        for (uint64_t j = 0; j < n; j++)
            for (uint64_t i = 0; i < n; i++)
                EACH (m, 0, UNKNOWNS) {
                    double exact = SOLUTION[m].constant + part(m, X, (double)i * g->step) +
                                   part(m, Y, (double)j * g->step) +
                                   part(m, Z, (double)k * g->step);
                    double error = g->u[point(g, i, j, k)][m] - exact;
                    sum += error * error;
                }
    return sqrt(sum / ((double)n * (double)n * (double)n * UNKNOWNS));
}

/* ---- fluxes and their Jacobians ------------------------------------------ */

/* What crosses a face in direction `d`: mass, momentum with pressure, energy. */
static inline void flux(const struct grid *g, int d, uint64_t at, vector f)
{
    const double *u = g->u[at];
    double w = g->velocity[d][at];
    double pressure = PRESSURE * (u[ENERGY] - g->square[at]);
    f[0] = u[1 + d];
    EACH (m, 1, ENERGY)
        f[m] = u[m] * w;
    f[1 + d] += pressure;
    f[ENERGY] = (u[ENERGY] + pressure) * w;
}

/* What viscosity and conduction take the second difference of, along `d`. */
static inline void viscous(const struct grid *g, int d, uint64_t at, vector f)
{
    double w = g->velocity[d][at];
    f[0] = 0.0;
    EACH (m, 0, 3)
        f[1 + m] = VISCOSITY * g->velocity[m][at];
    f[1 + d] *= 4.0 / 3.0;
    f[ENERGY] = VISCOSITY * ((1.0 - CONDUCTION) * g->kinetic[at] + w * w / 6.0 +
                             CONDUCTION * g->u[at][ENERGY] * g->inverse[at]);
}

/* Derivatives of both by the five unknowns. */
static inline void jacobians(const struct grid *g, int d, uint64_t at, block f, block v)
{
    const double *u = g->u[at];
    double inverse = g->inverse[at], kinetic = g->kinetic[at], square = g->square[at];
    double w[3] = {u[1] * inverse, u[2] * inverse, u[3] * inverse};
    double energy = u[ENERGY] * inverse;
    double enthalpy = GAMMA * energy - PRESSURE * kinetic;
    memset(f, 0, sizeof(block));
    memset(v, 0, sizeof(block));
    f[0][1 + d] = 1.0;
    EACH (m, 0, 3) {
        double stretch = m == d ? VISCOSITY * (4.0 / 3.0) : VISCOSITY;
        f[1 + m][0] = -w[m] * w[d];
        f[1 + m][1 + m] = w[d];
        v[1 + m][0] = -stretch * w[m] * inverse;
        v[1 + m][1 + m] = stretch * inverse;
    }
    EACH (m, 0, 3) {
        f[1 + m][1 + d] += w[m];
        f[1 + d][1 + m] -= PRESSURE * w[m];
        f[ENERGY][1 + m] = -PRESSURE * w[m] * w[d];
        v[ENERGY][1 + m] = VISCOSITY * (1.0 - CONDUCTION) * w[m] * inverse;
    }
    f[1 + d][0] += PRESSURE * kinetic;
    f[1 + d][ENERGY] = PRESSURE;
    f[ENERGY][0] = (2.0 * PRESSURE * square - GAMMA * u[ENERGY]) * inverse * w[d];
    f[ENERGY][1 + d] += enthalpy;
    f[ENERGY][ENERGY] = GAMMA * w[d];
    v[ENERGY][0] = -VISCOSITY * inverse *
                   (2.0 * (1.0 - CONDUCTION) * kinetic + w[d] * w[d] / 3.0 + CONDUCTION * energy);
    v[ENERGY][1 + d] += VISCOSITY * w[d] * inverse / 3.0;
    v[ENERGY][ENERGY] = VISCOSITY * CONDUCTION * inverse;
}

/* ---- the right-hand side ------------------------------------------------- */

static inline void derive_point(struct grid *g, uint64_t at)
{
    const double *u = g->u[at];
    double inverse = 1.0 / u[0];
    g->inverse[at] = inverse;
    for (int d = X; d <= Z; d++)
        g->velocity[d][at] = u[1 + d] * inverse;
    g->square[at] = 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) * inverse;
    g->kinetic[at] = g->square[at] * inverse;
}

/* Velocities and energies of whole planes, faces too. */
static void derive(struct grid *g, struct span planes)
{
    for (uint64_t k = planes.first; k < planes.end; k++)
        for (uint64_t j = 0; j < g->size; j++)
            for (uint64_t i = 0; i < g->size; i++)
                derive_point(g, point(g, i, j, k));
}

static void force(struct grid *g, struct span planes)
{
    for (uint64_t k = planes.first; k < planes.end; k++)
        for (uint64_t j = 0; j < g->size; j++)
            for (uint64_t i = 0; i < g->size; i++)
                memcpy(g->rhs[point(g, i, j, k)], g->forcing[point(g, i, j, k)], sizeof(vector));
}

/* The fourth difference of an unknown, one-sided beside the faces. */
static inline double fourth(const double *u, uint64_t place, uint64_t size, uint64_t stride)
{
    uint64_t s = stride * UNKNOWNS;
    if (place == 1)
        return 5.0 * u[0] - 4.0 * u[s] + u[2 * s];
    if (place == size - 2)
        return u[-2 * (int64_t)s] - 4.0 * u[-(int64_t)s] + 5.0 * u[0];
    double near = 6.0 * u[0] - 4.0 * (u[s] + u[-(int64_t)s]);
    if (place == 2)
        return near + u[2 * s];
    if (place == size - 3)
        return near + u[-2 * (int64_t)s];
    return near + u[2 * s] + u[-2 * (int64_t)s];
}

static inline void add_fluxes(struct grid *g, int d, uint64_t at)
{
    double central = 0.5 / g->step, second = 1.0 / (g->step * g->step);
    uint64_t s = g->stride[d];
    vector before, after, low, here, high;
    flux(g, d, at - s, before);
    flux(g, d, at + s, after);
    viscous(g, d, at - s, low);
    viscous(g, d, at, here);
    viscous(g, d, at + s, high);
    EACH (m, 0, UNKNOWNS) {
        double diffused = g->u[at + s][m] - 2.0 * g->u[at][m] + g->u[at - s][m];
        g->rhs[at][m] += second * (DIFFUSION * diffused + high[m] - 2.0 * here[m] + low[m]) -
                         central * (after[m] - before[m]);
    }
}

/*
 * Differences of fluxes along `d`, then dissipation, plane by plane (BT goes
 * twice over all planes for those along z).
 */
static inline __attribute__((always_inline)) void differ(struct grid *g, int d, struct span planes)
{
    uint64_t n = g->size;
    for (uint64_t k = planes.first; k < planes.end; k++) {
        for (uint64_t j = 1; j < n - 1; j++)
            for (uint64_t i = 1; i < n - 1; i++)
                add_fluxes(g, d, point(g, i, j, k));
        for (uint64_t j = 1; j < n - 1; j++)
            for (uint64_t i = 1; i < n - 1; i++) {
                uint64_t at = point(g, i, j, k), place = d == X ? i : d == Y ? j : k;
                EACH (m, 0, UNKNOWNS)
                    g->rhs[at][m] -= DISSIPATION * fourth(&g->u[at][m], place, n, g->stride[d]);
            }
    }
}

static void scale(struct grid *g, struct span planes)
{
    for (uint64_t k = planes.first; k < planes.end; k++)
        for (uint64_t j = 1; j < g->size - 1; j++)
            for (uint64_t i = 1; i < g->size - 1; i++)
                EACH (m, 0, UNKNOWNS)
                    g->rhs[point(g, i, j, k)][m] *= STEP;
}

static void right_side(struct grid *g)
{
    struct span whole = {0, g->size};
    derive(g, g->planes == 0 ? whole : planes_of(g, DERIVE));
    force(g, g->planes == 0 ? whole : planes_of(g, FORCE));
    differ(g, X, planes_of(g, FLUX_X));
    differ(g, Y, planes_of(g, FLUX_Y));
    differ(g, Z, planes_of(g, FLUX_Z));
}

/* ---- lines ---------------------------------------------------------------- */

/* The blocks of I - dt X (or Y, or Z) along a line from `start`. */
static inline void make_blocks(const struct grid *g, int d, uint64_t start, struct line *line)
{
    uint64_t n = g->size;
    double central = STEP * 0.5 / g->step, second = STEP / (g->step * g->step);
    for (uint64_t i = 0; i < n; i++)
        jacobians(g, d, start + i * g->stride[d], line->inviscid[i], line->viscous[i]);
    for (uint64_t i = 0; i < n; i += n - 1) {
        memset(line->below[i], 0, sizeof(block));
        memset(line->above[i], 0, sizeof(block));
        memset(line->diagonal[i], 0, sizeof(block));
        EACH (m, 0, UNKNOWNS)
            line->diagonal[i][m][m] = 1.0;
    }
    for (uint64_t i = 1; i < n - 1; i++) {
        EACH (r, 0, UNKNOWNS)
            EACH (c, 0, UNKNOWNS) {
                line->below[i][r][c] =
                    -central * line->inviscid[i - 1][r][c] - second * line->viscous[i - 1][r][c];
                line->diagonal[i][r][c] = 2.0 * second * line->viscous[i][r][c];
                line->above[i][r][c] =
                    central * line->inviscid[i + 1][r][c] - second * line->viscous[i + 1][r][c];
            }
        EACH (m, 0, UNKNOWNS) {
            line->below[i][m][m] -= second * DIFFUSION;
            line->diagonal[i][m][m] += 1.0 + 2.0 * second * DIFFUSION;
            line->above[i][m][m] -= second * DIFFUSION;
        }
    }
}

/* y -= a x */
static inline void subtract_product(vector y, block a, const vector x)
{
    EACH (r, 0, UNKNOWNS)
        y[r] -= a[r][0] * x[0] + a[r][1] * x[1] + a[r][2] * x[2] + a[r][3] * x[3] + a[r][4] * x[4];
}

/* c -= a b */
static inline void subtract_block(row *restrict c, row *restrict a, row *restrict b)
{
    EACH (r, 0, UNKNOWNS)
        EACH (s, 0, UNKNOWNS)
            c[r][s] -= a[r][0] * b[0][s] + a[r][1] * b[1][s] + a[r][2] * b[2][s] +
                       a[r][3] * b[3][s] + a[r][4] * b[4][s];
}

/* c = a^-1 c and x = a^-1 x, by elimination without pivots: a is near the identity. */
static inline void divide(row *restrict a, row *restrict c, double *restrict x)
{
    EACH (p, 0, UNKNOWNS) {
        double pivot = 1.0 / a[p][p];
        EACH (s, p + 1, UNKNOWNS)
            a[p][s] *= pivot;
        EACH (s, 0, UNKNOWNS)
            c[p][s] *= pivot;
        x[p] *= pivot;
        EACH (r, 0, UNKNOWNS) {
            if (r == p)
                continue;
            double factor = a[r][p];
            EACH (s, p + 1, UNKNOWNS)
                a[r][s] -= factor * a[p][s];
            EACH (s, 0, UNKNOWNS)
                c[r][s] -= factor * c[p][s];
            x[r] -= factor * x[p];
        }
    }
}

/* Puts a line's solution back into its equations. */
static void check_line(const struct grid *g, int d, uint64_t start, struct line *line)
{
    uint64_t s = g->stride[d];
    double most = 0.0, worst = 0.0;
    make_blocks(g, d, start, line);
    for (uint64_t i = 1; i < g->size - 1; i++) {
        uint64_t at = start + i * s;
        vector left;
        memcpy(left, line->given[i], sizeof left);
        EACH (m, 0, UNKNOWNS)
            most = fmax(most, fabs(left[m]));
        subtract_product(left, line->below[i], g->rhs[at - s]);
        subtract_product(left, line->diagonal[i], g->rhs[at]);
        subtract_product(left, line->above[i], g->rhs[at + s]);
        /* Written so that a NaN stays. */
        EACH (m, 0, UNKNOWNS)
            worst = fabs(left[m]) <= worst ? worst : fabs(left[m]);
    }
    if (!(worst <= LINE_TOLERANCE * most))
        fail("validation failed: residual %g of a line, of values up to %g", worst, most);
}

static inline __attribute__((always_inline)) void solve_line(struct grid *g, int d, uint64_t start,
                                                             struct line *line, bool check)
{
    uint64_t n = g->size, s = g->stride[d];
    if (check)
        for (uint64_t i = 0; i < n; i++)
            memcpy(line->given[i], g->rhs[start + i * s], sizeof(vector));
    make_blocks(g, d, start, line);
    divide(line->diagonal[0], line->above[0], g->rhs[start]);
    for (uint64_t i = 1; i < n; i++) {
        uint64_t at = start + i * s;
        subtract_product(g->rhs[at], line->below[i], g->rhs[at - s]);
        subtract_block(line->diagonal[i], line->below[i], line->above[i - 1]);
        divide(line->diagonal[i], line->above[i], g->rhs[at]);
    }
    for (uint64_t i = n - 1; i-- > 0;) {
        uint64_t at = start + i * s;
        subtract_product(g->rhs[at], line->above[i], g->rhs[at + s]);
    }
    if (check)
        check_line(g, d, start, line);
}

/*
 * All lines along `d`, in BT's order: plane by plane (of z; lines along z, of
 * y), and in a plane by rising y, or by rising x for lines along y and z.
 */
static inline __attribute__((always_inline)) void sweep(struct grid *g, int d, struct line *line,
                                                        struct span planes)
{
    int outer = d == Z ? Y : Z, inner = d == X ? Y : X;
    for (uint64_t p = planes.first; p < planes.end; p++)
        for (uint64_t q = 1; q < g->size - 1; q++)
            solve_line(g, d, p * g->stride[outer] + q * g->stride[inner], line,
                       g->checks && (p + q) % CHECKED_LINES == 0);
}

static void sweep_x(struct grid *g, struct line *line)
{
    sweep(g, X, line, planes_of(g, SOLVE_X));
}

static void sweep_y(struct grid *g, struct line *line)
{
    sweep(g, Y, line, planes_of(g, SOLVE_Y));
}

static void sweep_z(struct grid *g, struct line *line)
{
    sweep(g, Z, line, planes_of(g, SOLVE_Z));
}

static void add(struct grid *g, struct span planes)
{
    for (uint64_t k = planes.first; k < planes.end; k++)
        for (uint64_t j = 1; j < g->size - 1; j++)
            for (uint64_t i = 1; i < g->size - 1; i++)
                EACH (m, 0, UNKNOWNS)
                    g->u[point(g, i, j, k)][m] += g->rhs[point(g, i, j, k)][m];
}

/* One step in time. */
__attribute__((noinline)) static void advance(struct grid *g, struct line *line)
{
    right_side(g);
    scale(g, planes_of(g, SCALE));
    sweep_x(g, line);
    sweep_y(g, line);
    sweep_z(g, line);
    add(g, planes_of(g, ADD));
}

/* ---- what is checked -------------------------------------------------------- */

/* The derivative of the right-hand side at a point by an unknown of another, by differences. */
static void by_differences(struct grid *g, uint64_t changed, int unknown, const uint64_t *at,
                           int points, vector *derivative)
{
    const double small = 1e-6;
    double kept = g->u[changed][unknown];
    for (int up = 1; up >= 0; up--) {
        g->u[changed][unknown] = kept + (up ? small : -small);
        right_side(g);
        for (int p = 0; p < points; p++)
            EACH (m, 0, UNKNOWNS) {
                double half = g->rhs[at[p]][m] / (2.0 * small);
                derivative[p][m] = up ? half : derivative[p][m] - half;
            }
    }
    g->u[changed][unknown] = kept;
    right_side(g);
}

/*
 * Compares blocks with differences of the right-hand side: those of the point
 * at the center, and of those beside it. Dissipation is not in the blocks.
 */
static void check_blocks(struct grid *g, struct line *line)
{
    uint64_t middle = g->size / 2, center = point(g, middle, middle, middle);
    uint64_t at[7] = {center};
    block exact[7] = {0};
    right_side(g);
    for (int d = X; d <= Z; d++) {
        at[1 + 2 * d] = center - g->stride[d];
        at[2 + 2 * d] = center + g->stride[d];
        make_blocks(g, d, center - middle * g->stride[d], line);
        for (int r = 0; r < UNKNOWNS; r++)
            for (int c = 0; c < UNKNOWNS; c++) {
                double one = r == c;
                exact[0][r][c] +=
                    (one - line->diagonal[middle][r][c]) / STEP - 6.0 * DISSIPATION * one;
                exact[1 + 2 * d][r][c] =
                    4.0 * DISSIPATION * one - line->above[middle - 1][r][c] / STEP;
                exact[2 + 2 * d][r][c] =
                    4.0 * DISSIPATION * one - line->below[middle + 1][r][c] / STEP;
            }
    }
    for (int c = 0; c < UNKNOWNS; c++) {
        vector found[7];
        by_differences(g, center, c, at, 7, found);
        for (int p = 0; p < 7; p++)
            for (int r = 0; r < UNKNOWNS; r++)
                if (!(fabs(found[p][r] - exact[p][r][c]) * g->step * g->step <= BLOCK_TOLERANCE))
                    fail("validation failed: derivative %.9g in a block, by differences %.9g",
                         exact[p][r][c], found[p][r]);
    }
}

/* The forcing that makes u* a fixed point; then u is set beside it. */
static void prepare(struct grid *g)
{
    memset(g->memory, 0, g->points * (6 + 3 * UNKNOWNS) * sizeof(double));
    if (g->planes == 0) {
        set(g, 0.0);
        right_side(g);
        for (uint64_t at = 0; at < g->points; at++)
            EACH (m, 0, UNKNOWNS) {
                g->forcing[at][m] = -g->rhs[at][m];
                g->rhs[at][m] = 0.0;
            }
    }
    set(g, DISTURBANCE);
    derive(g, (struct span){0, g->size});
}

int main(int argc, char **argv)
{
    uint64_t size = 40, steps = 4, planes = 0;
    const struct option_spec options[] = {
        {"size", OPTION_COUNT, &size, 6, 4096, "points along each edge"},
        {"steps", OPTION_COUNT, &steps, 1, UINT64_MAX, "steps in time"},
        {"planes", OPTION_COUNT, &planes, 0, 4096, "planes of each loop; 0: all, and check"},
    };
    PARSE_OPTIONS(argc, argv, "Implicit flow in a cube, by block-tridiagonal lines (like NPB BT).",
                  options);
    if (planes > size - 2)
        usage_error("--planes: %" PRIu64 " is more than the %" PRIu64 " inside", planes, size - 2);

    struct grid g = new_grid(size, planes);
    struct line line = new_line(size);
    prepare(&g);
    printf("bt: %" PRIu64 " points a side, %" PRIu64 " steps\n", size, steps);
    g.checks = planes == 0;
    if (!g.checks) {
        for (uint64_t step = 0; step < steps; step++)
            advance(&g, &line);
        printf("%" PRIu64 " planes of each loop\nvalidation: skipped\n", planes);
    } else {
        check_blocks(&g, &line);
        double first = error_of(&g), error = first;
        printf("start: error %.6e\n", first);
        if (!(first > 0.0))
            fail("validation failed: the start is the solution");
        for (uint64_t step = 1; step <= steps; step++) {
            double before = error;
            advance(&g, &line);
            error = error_of(&g);
            printf("step %" PRIu64 ": error %.6e\n", step, error);
            if (!(error <= LEFT * before || error <= LITTLE * first))
                fail("validation failed: error %g, %g a step before", error, before);
        }
        printf("validation: passed\n");
    }
    free_line(line);
    free(g.memory);
    return finish();
}
