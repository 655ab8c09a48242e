/* Does a heap begin on base pages, and are all its pages to be huge as soon as it needs more than one
 * huge page? Asked of the kernel by the flags of the mapping that an address lies in. */
#include "common.h"

enum { HUGE_BYTES = 2 << 20, SIZE = 64 << 10 };

static int has_flag(const void *memory, const char *flag) {
    char line[1024];
    unsigned long begin, end;
    int inside = 0, found = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = begin <= (uintptr_t)memory && (uintptr_t)memory < end;
        else if (inside && !strncmp(line, "VmFlags:", 8))
            found = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return found;
}

int main(void) {
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK)) return 0;
    char *first = malloc(SIZE), *later = first;
    CHECK(first && has_flag(first, " nh"));
    while ((uintptr_t)later / HUGE_BYTES == (uintptr_t)first / HUGE_BYTES)
        CHECK(later = malloc(SIZE));
    CHECK(has_flag(later, " hg") && has_flag(first, " hg"));
    return 0;
}
