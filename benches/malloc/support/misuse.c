/* One mistake in the use of malloc, then ordinary use: does the allocator notice?
 *
 * misuse            writes the names of all cases, each with its kind
 * misuse NUMBER     makes the mistake of that number; "unnoticed" if the process lives on to its end
 *
 * C++'s sized delete is called by its symbol. */
#define _GNU_SOURCE
#include "../bench.h"
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

extern void *_Znwm(size_t) __attribute__((weak));
extern void _ZdlPvm(void *, size_t) __attribute__((weak));

enum { MANY = 200, BIG = 1 << 20 };

static void *opaque(void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}
static void *get(size_t size) { return memset(opaque(malloc(size)), 'a', size); }
static void give(void *p) { free(opaque(p)); }
static void *give_it(void *p) {
    give(p);
    return NULL;
}
static void others(size_t size) {
    char *all[MANY];
    int count = size > 65536 ? 10 : MANY;
    for (int i = 0; i < count; i++) all[i] = get(size);
    for (int i = 0; i < count; i++) give(all[i]);
}

/* Free, `between` frees of other objects, and the second free. */
static void twice(size_t size, int between) {
    char *all[MANY], *p = get(size);
    for (int i = 0; i < between; i++) all[i] = get(size);
    give(p);
    for (int i = 0; i < between; i++) give(all[i]);
    give(p);
}

/* Write `count` bytes at `offset` from the end (that was asked for, or of what is usable) of one of many objects. */
static void write_at(size_t size, int usable, ptrdiff_t offset, size_t count) {
    char *all[MANY];
    for (int i = 0; i < MANY; i++) all[i] = get(size);
    char *middle = all[MANY / 2];
    size_t end = usable ? malloc_usable_size(middle) : size;
    memset((char *)opaque(middle) + end + offset, 'o', count);
    for (int i = 0; i < MANY; i++) give(all[i]);
}
/* The object that lies closest behind another one: the first of a page or a span has no object before it. */
static void write_before(size_t size, size_t count) {
    char *all[MANY], *wanted = NULL;
    size_t closest = SIZE_MAX;
    for (int i = 0; i < MANY; i++) all[i] = get(size);
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < MANY; j++)
            if (all[j] > all[i] && (size_t)(all[j] - all[i]) < closest) {
                closest = (size_t)(all[j] - all[i]);
                wanted = all[j];
            }
    memset((char *)opaque(wanted) - count, 'u', count);
    for (int i = 0; i < MANY; i++) give(all[i]);
}
static void write_freed(size_t size, size_t offset, size_t count, int between) {
    char *all[MANY], *p = get(size);
    for (int i = 0; i < between; i++) all[i] = get(size);
    give(p);
    for (int i = 0; i < between; i++) give(all[i]);
    memset((char *)opaque(p) + offset, 'w', count);
}
static void *foreign(void) {
    return mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void moved(size_t size) {
    char *p = get(size), *q = realloc(opaque(p), size * 8);
    if (q != p)
        give(p);
    else
        _exit(3);
    give(q);
}
static void sized(size_t size, size_t said) {
    if (!_Znwm || !_ZdlPvm) _exit(3);
    _ZdlPvm(opaque(memset(_Znwm(size), 1, size)), said);
}
static void in_thread(void) {
    pthread_t thread;
    char *p = get(100);
    give(p);
    pthread_create(&thread, NULL, give_it, p);
    pthread_join(thread, NULL);
}
static void reused(void) {
    char *p = get(100), *q;
    give(p);
    q = get(100);
    give(p);
    give(q);
}
static void aligned(void) {
    char *p = aligned_alloc(64, 256);
    give(p);
    give(p);
}

static char in_data[4096];
static size_t size;
#define CASES                                                                                      \
    CASE("double free", "100 bytes, at once", twice(size = 100, 0))                                \
    CASE("double free", "16 bytes, at once", twice(size = 16, 0))                                  \
    CASE("double free", "10 KB, at once", twice(size = 10240, 0))                                  \
    CASE("double free", "1 MB, at once", twice(size = BIG, 0))                                     \
    CASE("double free", "aligned_alloc", (size = 256, aligned()))                                  \
    CASE("double free", "one other free between", twice(size = 100, 1))                            \
    CASE("double free", "100 others between", twice(size = 100, 100))                              \
    CASE("double free", "1 MB, 10 others between", twice(size = BIG, 10))                          \
    CASE("double free", "in another thread", (size = 100, in_thread()))                            \
    CASE("double free", "after it was handed out again", (size = 100, reused()))                   \
    CASE("invalid free", "a multiple of the size beyond",                                          \
         give((char *)get(size = 1500) + 5 * 1536))                                                \
    CASE("invalid free", "wild pointer", give((void *)0x123456789abcdef0))                         \
    CASE("invalid free", "small number", give((void *)16))                                         \
    CASE("interior", "16 bytes into 100", give((char *)get(size = 100) + 16))                      \
    CASE("interior", "1 byte into 100", give((char *)get(size = 100) + 1))                         \
    CASE("interior", "the middle of 10 KB", give((char *)get(size = 10240) + 5120))                \
    CASE("interior", "4 KB into 1 MB", give((char *)get(size = BIG) + 4096))                       \
    CASE("interior", "64 KB into 1 MB", give((char *)get(size = BIG) + 65536))                     \
    CASE("foreign", "stack", give(on_stack + 16))                                                  \
    CASE("foreign", "static", give(in_data + 16))                                                  \
    CASE("foreign", "mmap", give(foreign()))                                                       \
    CASE("realloc", "of a freed 100 bytes",                                                        \
         (give(p = get(size = 100)), p = realloc(opaque(p), 150)))                                 \
    CASE("realloc", "of a freed 1 MB", (give(p = get(size = BIG)), p = realloc(opaque(p), 100)))   \
    CASE("realloc", "16 bytes into 100", p = realloc(opaque((char *)get(size = 100) + 16), 150))   \
    CASE("realloc", "old pointer freed, 100 bytes", moved(size = 100))                             \
    CASE("realloc", "old pointer freed, 300 KB", moved(size = 300 << 10))                          \
    CASE("sized delete", "100 bytes as 1,000", sized(size = 100, 1000))                            \
    CASE("sized delete", "1 MB as 100 bytes", sized(size = BIG, 100))                              \
    CASE("overflow", "1 byte beyond 100", write_at(size = 100, 0, 0, 1))                           \
    CASE("overflow", "1 byte beyond what is usable", write_at(size = 100, 1, 0, 1))                \
    CASE("overflow", "8 bytes beyond what is usable", write_at(size = 100, 1, 0, 8))               \
    CASE("overflow", "64 bytes beyond what is usable", write_at(size = 100, 1, 0, 64))             \
    CASE("overflow", "1 byte beyond 4,096", write_at(size = 4096, 0, 0, 1))                        \
    CASE("overflow", "1 byte beyond 1 MB", write_at(size = BIG, 0, 0, 1))                          \
    CASE("underflow", "1 byte before 100", write_before(size = 100, 1))                            \
    CASE("underflow", "16 bytes before 100", write_before(size = 100, 16))                         \
    CASE("write after free", "the first 8 of 100 bytes", write_freed(size = 100, 0, 8, 0))         \
    CASE("write after free", "8 bytes at 32 of 100", write_freed(size = 100, 32, 8, 0))            \
    CASE("write after free", "all of 100, 100 others freed", write_freed(size = 100, 0, 100, 100)) \
    CASE("write after free", "all of 1 MB", write_freed(size = BIG, 0, BIG, 0))

int main(int count, char **arguments) {
    char on_stack[100];
    void *p;
    int number = 0, wanted = count > 1 ? atoi(arguments[1]) : -1;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    others(100);
#define CASE(kind, name, act)          \
    if (wanted < 0)                    \
        printf("%s|%s\n", kind, name); \
    else if (number == wanted) {       \
        act;                           \
    }                                  \
    number++;
    CASES
    if (wanted < 0) return 0;
    for (int i = 0; i < 20 && size; i++) others(size);
    if (write(1, "unnoticed\n", 10) != 10) return 1;
    return 0;
}
