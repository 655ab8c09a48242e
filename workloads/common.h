/*
 * What every workload needs and libc does not give: strict options, sizes
 * with binary suffixes, a random generator, and failing with a message.
 *
 * A header of inline functions, so that each workload stays one source file
 * that can be compiled and read alone. Exit statuses: 0 the result was
 * validated, 1 it is wrong or the system refused something, 2 bad usage.
 */
#ifndef WORKLOADS_COMMON_H
#define WORKLOADS_COMMON_H

/* Include this header first: it asks libc for all that Linux has. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

/* ---- failing ---------------------------------------------------------- */

__attribute__((noreturn, format(printf, 2, 3))) static inline void quit(int status,
                                                                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

#define fail(...) quit(1, __VA_ARGS__)
#define usage_error(...) quit(2, __VA_ARGS__)

/* For the self-checking tests: stop with the condition that did not hold. */
#define require(condition)                                               \
    do {                                                                 \
        if (!(condition))                                                \
            fail("%s:%d: not true: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* The last statement of main: output that could not be written is a failure. */
static inline int finish(void)
{
    if (ferror(stdout) || fflush(stdout) != 0)
        fail("cannot write the output: %s", strerror(errno));
    return 0;
}

/* An array of `count` elements of `size` bytes, not initialized. */
static inline void *allocate(uint64_t count, uint64_t size)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        fail("%" PRIu64 " elements of %" PRIu64 " bytes are too many", count, size);
    void *memory = malloc(bytes);
    if (memory == NULL && bytes != 0)
        fail("cannot allocate %" PRIu64 " bytes: %s", bytes, strerror(errno));
    return memory;
}

/* The same, filled with zeros (untouched by us: the kernel's zero pages). */
static inline void *allocate_zeroed(uint64_t count, uint64_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL && count != 0)
        fail("cannot allocate %" PRIu64 " elements of %" PRIu64 " bytes: %s", count, size,
             strerror(errno));
    return memory;
}

/* ---- random numbers --------------------------------------------------- */

/*
 * The finalizer and the generator of SplitMix64 (Steele, Lea and Flood,
 * "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with the
 * constants of Stafford's variant 13). mix64 is a bijection.
 */
static inline uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t random_bits(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return mix64(*state);
}

/* Uniform in [0, bound); the bias is below bound / 2^64. */
static inline uint64_t random_below(uint64_t *state, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)random_bits(state) * bound) >> 64);
}

/* Uniform in [0, 1), 53 bits. */
static inline double random_real(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

/* ---- options ---------------------------------------------------------- */

enum option_kind {
    OPTION_FLAG,  /* bool: --name, no value */
    OPTION_COUNT, /* uint64_t: decimal digits */
    OPTION_SIZE,  /* uint64_t, bytes: digits and an optional binary suffix */
    OPTION_REAL,  /* double */
};

struct option_spec {
    const char *name; /* without the dashes */
    enum option_kind kind;
    void *value;               /* holds the default; replaced when given */
    uint64_t minimum, maximum; /* inclusive, for every kind but flags */
    const char *help;
};

/* Leading digits of `text` as a number; `*end` is what follows them. */
static inline bool parse_digits(const char *text, uint64_t *number, const char **end)
{
    const char *digit = text;
    *number = 0;
    for (; *digit >= '0' && *digit <= '9'; digit++)
        if (__builtin_mul_overflow(*number, 10, number) ||
            __builtin_add_overflow(*number, (uint64_t)(*digit - '0'), number))
            return false;
    *end = digit;
    return digit != text;
}

static inline bool parse_count(const char *text, uint64_t *number)
{
    const char *end;
    return parse_digits(text, number, &end) && *end == '\0';
}

/* "4096", "64K", "64KiB", "2MiB", "1G": suffixes are powers of two. */
static inline bool parse_size(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *suffix, *longer;
        uint64_t unit;
    } units[] = {
        {"", "B", 1}, {"K", "KiB", KIB}, {"M", "MiB", MIB}, {"G", "GiB", GIB}, {"T", "TiB", TIB},
    };
    const char *end;
    if (!parse_digits(text, bytes, &end))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].suffix) == 0 || strcmp(end, units[i].longer) == 0)
            return !__builtin_mul_overflow(*bytes, units[i].unit, bytes);
    return false;
}

static inline bool parse_real(const char *text, double *number)
{
    char *end;
    if (*text < '0' || *text > '9' || strpbrk(text, "xX") != NULL)
        return false;
    *number = strtod(text, &end);
    return *end == '\0' && isfinite(*number);
}

/* A size as it would be typed: with the largest unit that divides it. */
static inline void format_size(uint64_t bytes, char *text, size_t length)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; bytes != 0 && bytes % 1024 == 0 && unit < 4; unit++)
        bytes /= 1024;
    snprintf(text, length, "%" PRIu64 "%s", bytes, units[unit]);
}

static inline void print_option(const struct option_spec *option)
{
    static const char *const placeholders[] = {"", " N", " BYTES", " X"};
    char left[64], value[32] = "";
    snprintf(left, sizeof left, "--%s%s", option->name, placeholders[option->kind]);
    if (option->kind == OPTION_COUNT)
        snprintf(value, sizeof value, "%" PRIu64, *(uint64_t *)option->value);
    else if (option->kind == OPTION_SIZE)
        format_size(*(uint64_t *)option->value, value, sizeof value);
    else if (option->kind == OPTION_REAL)
        snprintf(value, sizeof value, "%g", *(double *)option->value);
    printf(*value ? "  %-20s %s [%s]\n" : "  %-20s %s\n", left, option->help, value);
}

static inline void print_help(const char *summary, const struct option_spec *options, size_t count)
{
    printf("Usage: %s [OPTION]...\n%s\n\n", program_invocation_short_name, summary);
    for (size_t i = 0; i < count; i++)
        print_option(&options[i]);
    printf("  %-20s %s\n\n", "--help", "show this help and exit");
    printf("BYTES may end in a binary suffix: K, M, G, T or KiB, MiB, GiB, TiB.\n");
}

static inline void set_option(const struct option_spec *option, const char *text)
{
    uint64_t number = 0;
    double real = 0.0;
    bool valid = option->kind == OPTION_COUNT  ? parse_count(text, &number)
                 : option->kind == OPTION_SIZE ? parse_size(text, &number)
                                               : parse_real(text, &real);
    if (!valid)
        usage_error("--%s: '%s' is not a %s", option->name, text,
                    option->kind == OPTION_SIZE ? "size (examples: 4096, 64KiB, 2M)" : "number");
    bool in_range = option->kind == OPTION_REAL
                        ? real >= (double)option->minimum && real <= (double)option->maximum
                        : number >= option->minimum && number <= option->maximum;
    if (!in_range)
        usage_error("--%s: %s is not between %" PRIu64 " and %" PRIu64, option->name, text,
                    option->minimum, option->maximum);
    if (option->kind == OPTION_REAL)
        *(double *)option->value = real;
    else
        *(uint64_t *)option->value = number;
}

static inline const struct option_spec *find_option(const char *name, size_t length,
                                                    const struct option_spec *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].name) == length && strncmp(name, options[i].name, length) == 0)
            return &options[i];
    return NULL;
}

/*
 * Accepts "--name value" and "--name=value"; returns only when all options
 * are valid. The last of several equal options counts.
 */
static inline void parse_options(int argc, char **argv, const char *summary,
                                 const struct option_spec *options, size_t count)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--help") == 0) {
            print_help(summary, options, count);
            exit(finish());
        }
        if (strncmp(name, "--", 2) != 0)
            usage_error("unexpected argument '%s'; see --help", name);
        name += 2;
        size_t length = strcspn(name, "=");
        const struct option_spec *option = find_option(name, length, options, count);
        if (option == NULL)
            usage_error("unknown option '%s'; see --help", argv[i]);
        const char *text = name[length] == '=' ? name + length + 1 : NULL;
        if (option->kind == OPTION_FLAG) {
            if (text != NULL)
                usage_error("--%s takes no value", option->name);
            *(bool *)option->value = true;
            continue;
        }
        if (text == NULL) {
            if (i + 1 == argc)
                usage_error("--%s needs a value", option->name);
            text = argv[++i];
        }
        set_option(option, text);
    }
}

#define PARSE_OPTIONS(argc, argv, summary, options)                                     \
    parse_options(argc, argv, summary, options, sizeof(options) / sizeof((options)[0]))

#endif
