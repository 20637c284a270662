/* Purpose: sentences that several commands say.
 * Owns: nothing.
 * Threads: the main thread.
 * Errors: none.
 * Invariant: all that was found is said, or counted. */
#include "talk.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>

void k3_say_problems(const struct k3_problems *problems)
{
    for (uint32_t i = 0; i < problems->kept_count; i++)
        fprintf(stderr, "problem: %s\n", problems->text[i]);
    if (problems->count > problems->kept_count)
        fprintf(stderr, "problem: and %" PRIu64 " more\n", problems->count - problems->kept_count);
}

void k3_print_outs(const struct k3_opts *opts)
{
    printf("%s", k3_printable(opts->out.item[0]).s);
    if (opts->out.count > 1)
        printf(" and %u more", opts->out.count - 1);
}

void k3_say_finished(const struct k3_opts *opts)
{
    printf("looked at names and sizes, and no byte of the parts; `k3-shard verify");
    for (uint32_t i = 0; i < opts->out.count; i++)
        printf(" %s", k3_quoted(opts->out.item[i]).s);
    printf("` reads them\n");
}
