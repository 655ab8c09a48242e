/*
 * memory: every system call by which a program shapes its address space,
 * each with a check of what memory then contains. Shows mmap, munmap (with a
 * hole), mremap (grow, move, shrink), brk, mprotect and madvise.
 *
 * Each line of output names a step and how many pages it touched that were
 * new to it, each counted once however often it is read or written, and again
 * if it was given back in between: what demand paging with small pages must
 * provide, on top of the program's own start. Nothing is printed or
 * malloc'ed while a step runs.
 */
#include "../common.h"

#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE (2 * MIB)

static size_t page;
static int probe[2]; /* a pipe: the kernel reports unusable memory as EFAULT */

static bool readable(const void *address)
{
    unsigned char byte;
    if (write(probe[1], address, 1) != 1) {
        require(errno == EFAULT);
        return false;
    }
    require(read(probe[0], &byte, 1) == 1);
    return true;
}

static bool writable(void *address)
{
    unsigned char byte = 0xee;
    require(write(probe[1], &byte, 1) == 1);
    if (read(probe[0], address, 1) == 1)
        return true;
    require(errno == EFAULT);
    require(read(probe[0], &byte, 1) == 1);
    return false;
}

/* One mark a page, so that a page is touched once and known afterwards. */
static void mark(unsigned char *memory, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        memory[i * page] = (unsigned char)(i % 251 + 1);
}

static bool marked(const unsigned char *memory, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (memory[i * page] != (unsigned char)(i % 251 + 1))
            return false;
    return true;
}

static bool zero(const unsigned char *memory, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (memory[i * page] != 0)
            return false;
    return true;
}

static unsigned char *map(size_t pages, int protection)
{
    void *memory = mmap(NULL, pages * page, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED);
    require(madvise(memory, pages * page, MADV_NOHUGEPAGE) == 0 || errno == EINVAL);
    return memory;
}

static int step_mmap(void)
{
    unsigned char *memory = map(64, PROT_READ | PROT_WRITE);
    mark(memory, 0, 48); /* 16 pages stay untouched */
    require(marked(memory, 0, 48));
    require(munmap(memory, 64 * page) == 0);
    require(!readable(memory));
    return 48;
}

static int step_munmap_hole(void)
{
    unsigned char *memory = map(64, PROT_READ | PROT_WRITE);
    mark(memory, 0, 64);
    require(munmap(memory + 16 * page, 16 * page) == 0);
    require(marked(memory, 0, 16) && marked(memory, 32, 64));
    require(!readable(memory + 16 * page) && !readable(memory + 31 * page));
    require(mmap(memory + 16 * page, 16 * page, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory + 16 * page);
    require(zero(memory, 16, 32));
    mark(memory, 16, 32);
    require(munmap(memory, 64 * page) == 0);
    return 64 + 16;
}

static int step_mremap_grow(void)
{
    unsigned char *memory = map(32, PROT_READ | PROT_WRITE);
    mark(memory, 0, 32);
    memory = mremap(memory, 32 * page, 128 * page, MREMAP_MAYMOVE);
    require(memory != MAP_FAILED);
    require(marked(memory, 0, 32) && zero(memory, 32, 128));
    mark(memory, 32, 128);
    require(munmap(memory, 128 * page) == 0);
    return 32 + 96;
}

static int step_mremap_move(void)
{
    unsigned char *memory = map(32, PROT_READ | PROT_WRITE);
    unsigned char *target = map(32, PROT_NONE);
    mark(memory, 0, 32);
    require(mremap(memory, 32 * page, 32 * page, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    require(!readable(memory));
    require(marked(target, 0, 32)); /* the same frames: nothing is touched anew */
    require(munmap(target, 32 * page) == 0);
    return 32;
}

static int step_mremap_shrink(void)
{
    unsigned char *memory = map(32, PROT_READ | PROT_WRITE);
    mark(memory, 0, 32);
    require(mremap(memory, 32 * page, 8 * page, 0) == memory);
    require(marked(memory, 0, 8) && !readable(memory + 8 * page));
    require(munmap(memory, 8 * page) == 0);
    return 32;
}

static int step_brk(void)
{
    uintptr_t unaligned = (uintptr_t)sbrk(0) % page;
    if (unaligned != 0)
        require(sbrk((intptr_t)(page - unaligned)) != (void *)-1);
    unsigned char *heap = sbrk((intptr_t)(32 * page));
    require(heap != (void *)-1);
    mark(heap, 0, 32);
    require(sbrk(-(intptr_t)(16 * page)) == heap + 32 * page);
    /* QEMU 7.2 leaves what was given back readable, so that is not checked. */
    require(marked(heap, 0, 16));
    require(sbrk((intptr_t)(16 * page)) == heap + 16 * page);
    require(marked(heap, 0, 16) && zero(heap, 16, 32)); /* given back, then new */
    mark(heap, 16, 32);
    require(sbrk(-(intptr_t)(32 * page)) == heap + 32 * page);
    return 32 + 16;
}

static int step_mprotect(void)
{
    unsigned char *memory = map(16, PROT_READ | PROT_WRITE);
    mark(memory, 0, 16);
    require(mprotect(memory + 4 * page, 4 * page, PROT_READ) == 0);
    require(mprotect(memory + 8 * page, 4 * page, PROT_NONE) == 0);
    require(writable(memory + 3 * page + 1) && writable(memory + 12 * page + 1));
    require(readable(memory + 4 * page) && !writable(memory + 4 * page));
    require(!readable(memory + 8 * page) && !writable(memory + 8 * page));
    require(mprotect(memory, 16 * page, PROT_READ | PROT_WRITE) == 0);
    require(marked(memory, 0, 16)); /* whatever the protection, the content stays */
    require(munmap(memory, 16 * page) == 0);
    return 16;
}

static int step_madvise_dontneed(void)
{
    unsigned char *memory = map(32, PROT_READ | PROT_WRITE);
    mark(memory, 0, 32);
    require(madvise(memory + 8 * page, 16 * page, MADV_DONTNEED) == 0);
    require(marked(memory, 0, 8) && marked(memory, 24, 32));
    require(zero(memory, 8, 24));
    mark(memory, 8, 24);
    require(munmap(memory, 32 * page) == 0);
    return 32 + 16;
}

static int step_madvise_free(void)
{
    unsigned char *memory = map(32, PROT_READ | PROT_WRITE);
    mark(memory, 0, 32);
    require(madvise(memory + 8 * page, 16 * page, MADV_FREE) == 0);
    require(marked(memory, 0, 8) && marked(memory, 24, 32));
    for (size_t i = 8; i < 24; i++) /* each page alone may be gone or still there */
        require(marked(memory, i, i + 1) || zero(memory, i, i + 1));
    mark(memory, 8, 24); /* a write ends the kernel's right to take the page */
    require(marked(memory, 0, 32));
    require(munmap(memory, 32 * page) == 0);
    return 32;
}

/*
 * Two aligned huge pages, touched completely. When the advice comes, the
 * first has one page in use, which must stay as it is; the second has none,
 * so its first touch may get a huge page.
 */
static int step_madvise_huge(int advice)
{
    size_t huge_pages = HUGE_PAGE / page;
    unsigned char *memory =
        mmap(NULL, 3 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED);
    unsigned char *aligned = memory + (-(uintptr_t)memory & (HUGE_PAGE - 1));
    mark(aligned, 0, 1);
    /* A kernel without huge pages refuses the advice; content is the same. */
    require(madvise(aligned, 2 * HUGE_PAGE, advice) == 0 || errno == EINVAL);
    require(marked(aligned, 0, 1) && zero(aligned, 1, 2));
    mark(aligned, 1, 2 * huge_pages);
    require(marked(aligned, 0, 2 * huge_pages));
    require(munmap(memory, 3 * HUGE_PAGE) == 0);
    return (int)(2 * huge_pages);
}

static int step_madvise_hugepage(void)
{
    return step_madvise_huge(MADV_HUGEPAGE);
}

static int step_madvise_nohugepage(void)
{
    return step_madvise_huge(MADV_NOHUGEPAGE);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } steps[] = {
        {"mmap", step_mmap},
        {"munmap-hole", step_munmap_hole},
        {"mremap-grow", step_mremap_grow},
        {"mremap-move", step_mremap_move},
        {"mremap-shrink", step_mremap_shrink},
        {"brk", step_brk},
        {"mprotect", step_mprotect},
        {"madvise-dontneed", step_madvise_dontneed},
        {"madvise-free", step_madvise_free},
        {"madvise-hugepage", step_madvise_hugepage},
        {"madvise-nohugepage", step_madvise_nohugepage},
    };
    parse_options(argc, argv, "System calls that shape the address space.", NULL, 0);
    page = (size_t)sysconf(_SC_PAGESIZE);
    require(pipe(probe) == 0);
    int total = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int pages = steps[i].run();
        printf("%s: %d pages\n", steps[i].name, pages);
        total += pages;
    }
    printf("total: %d pages\n", total);
    return finish();
}
