/* A program with a malloc of its own, which lacks reallocarray: does the library's fit in? */
#define _GNU_SOURCE
#include "common.h"

static char arena[1 << 20];
static size_t used;

static size_t *header(void *memory) { return (size_t *)memory - 2; }

void *malloc(size_t size) {
    size_t whole = (size + 31) & ~(size_t)15;
    if (used + whole > sizeof arena) return NULL;
    char *memory = arena + used + 16;
    used += whole;
    *header(memory) = size;
    return memory;
}

void free(void *memory) {
    CHECK(!memory || ((char *)memory > arena && (char *)memory < arena + sizeof arena));
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *memory, size_t size) {
    void *new = malloc(size);
    if (new && memory) memcpy(new, memory, *header(memory) < size ? *header(memory) : size);
    return new;
}

int main(void) {
    int *numbers = NULL;
    for (int i = 0; i < 50; i++) {
        numbers = reallocarray(numbers, i + 1, sizeof *numbers);
        CHECK(numbers && (char *)numbers > arena && (char *)numbers < arena + sizeof arena);
        numbers[i] = i * i;
    }
    for (int i = 0; i < 50; i++) CHECK(numbers[i] == i * i);
    CHECK(!opaque(reallocarray(numbers, (size_t)1 << 40, (size_t)1 << 40)) && errno == ENOMEM);
    free(numbers);
    return 0;
}
