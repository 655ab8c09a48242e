/*
 * forks: a tree of processes that all inherit the same pages and then write
 * them. Shows fork, copy on write seen from parent and child (private
 * writes stay private, shared ones do not), pipes, nesting, and wait.
 *
 * Each process below the root forks two children until `depth` is reached;
 * each returns through its pipe how many processes its subtree had, and by
 * its exit status that all checks passed.
 */
#include "../common.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 2
#define PAGES 16

static size_t page_size;
static unsigned char *private_pages; /* copied on write */
static uint32_t *shared_counter;     /* one page that all processes share */

static void fill(unsigned char value)
{
    for (size_t i = 0; i < PAGES; i++)
        memset(private_pages + i * page_size, value, page_size);
}

static void require_filled(unsigned char value)
{
    for (size_t i = 0; i < PAGES * page_size; i++)
        require(private_pages[i] == value);
}

/* The work of one process; returns the number of processes below, plus one. */
static uint32_t grow(uint32_t depth)
{
    __atomic_add_fetch(shared_counter, 1, __ATOMIC_SEQ_CST);
    uint32_t processes = 1;
    unsigned char mine = (unsigned char)(0x10 * (depth + 1));
    fill(mine);
    for (unsigned child = 0; depth > 0 && child < CHILDREN; child++) {
        int ends[2];
        require(pipe(ends) == 0);
        pid_t pid = fork();
        require(pid >= 0);
        if (pid == 0) {
            close(ends[0]);
            require_filled((unsigned char)(mine + child)); /* the parent's, as of the fork */
            uint32_t below = grow(depth - 1);
            require(write(ends[1], &below, sizeof below) == sizeof below);
            _exit(0);
        }
        close(ends[1]);
        fill((unsigned char)(mine + child + 1)); /* while the child reads its own copy */
        uint32_t below = 0;
        int status = 0;
        require(read(ends[0], &below, sizeof below) == sizeof below);
        require(waitpid(pid, &status, 0) == pid);
        require(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(ends[0]);
        require_filled((unsigned char)(mine + child + 1)); /* the child's writes do not show */
        processes += below;
    }
    return processes;
}

int main(int argc, char **argv)
{
    uint64_t depth = 3;
    const struct option_spec options[] = {
        {"depth", OPTION_COUNT, &depth, 0, 6, "generations below the first process"},
    };
    PARSE_OPTIONS(argc, argv, "A tree of forked processes that write shared pages.", options);

    page_size = (size_t)sysconf(_SC_PAGESIZE);
    private_pages =
        mmap(NULL, PAGES * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared_counter =
        mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(private_pages != MAP_FAILED && shared_counter != MAP_FAILED);
    uint32_t processes = grow((uint32_t)depth);
    require(processes == (2u << depth) - 1);
    require(*shared_counter == processes);
    printf("forks: %" PRIu32 " processes, %d pages written by each\n", processes, PAGES);
    return finish();
}
