/*
 * forever: never ends by itself. Shows that a run can be stopped (a time or
 * instruction limit, Ctrl-C) and still report all that ran. The line at the
 * start says that main was reached. Each turn writes one of 64 pages.
 */
#include "../common.h"

#define PAGES 64
#define PAGE_SIZE 4096

int main(int argc, char **argv)
{
    parse_options(argc, argv, "Print a line, then write to memory forever.", NULL, 0);
    printf("forever: started\n");
    finish();
    static volatile uint64_t words[PAGES * PAGE_SIZE / sizeof(uint64_t)];
    for (uint64_t turn = 0;; turn++)
        words[turn % PAGES * (PAGE_SIZE / sizeof(uint64_t))]++;
}
