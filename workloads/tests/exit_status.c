/*
 * exit_status: ends in the way asked for. Shows whether an exit status or a
 * death by signal passes through a front end unchanged.
 */
#include "../common.h"

#include <signal.h>
#include <sys/resource.h>

int main(int argc, char **argv)
{
    uint64_t status = 0, number = 0;
    const struct option_spec options[] = {
        {"exit", OPTION_COUNT, &status, 0, 255, "exit with this status"},
        {"signal", OPTION_COUNT, &number, 0, 64, "kill itself by this signal; 0: don't"},
    };
    PARSE_OPTIONS(argc, argv, "Exit with a status or die by a signal.", options);
    if (number == 0) {
        printf("exit_status: exit %" PRIu64 "\n", status);
        finish();
        return (int)status;
    }
    printf("exit_status: signal %" PRIu64 "\n", number);
    finish();
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal((int)number, SIG_DFL);
    raise((int)number);
    fail("signal %" PRIu64 " does not kill", number);
}
