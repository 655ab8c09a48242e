// Loads of one word from each of many pages: each address from the load before (argument 1), or not (0).
#include <stdio.h>
#include <stdlib.h>

#define PAGES 4096
#define WORDS 1024

static unsigned next[PAGES * WORDS];

static unsigned word_of(unsigned page)
{
    return page * WORDS + page * 97 % WORDS;
}

__attribute__((noinline)) unsigned chase(unsigned at)
{
    for (int i = 0; i < PAGES; i++)
        at = next[at];
    return at;
}

__attribute__((noinline)) unsigned visit(void)
{
    unsigned sum = 0;
    for (unsigned i = 0, page = 0; i < PAGES; i++, page = (page + 2531) % PAGES)
        sum += next[word_of(page)];
    return sum;
}

int main(int argc, char **argv)
{
    for (unsigned page = 0; page < PAGES; page++)
        next[word_of(page)] = word_of((page + 2531) % PAGES);
    printf("%u\n", argc > 1 && atoi(argv[1]) ? chase(0) : visit());
    return 0;
}
