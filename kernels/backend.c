/* backend.c - the backends of this build, and how one is found by name. */
#include "kernels/backend.h"

#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

/* Best first: "auto" takes the first that this machine can run. ref always can. */
const struct backend_ops *const backends[] = {
    &cpu_backend_ops,
    &ref_backend_ops,
    NULL,
};

/* Takes the first backend whose probe succeeds. */
static const struct backend_ops *find_best(struct err *err)
{
    for (int i = 0; backends[i] != NULL; i++)
        if (backends[i]->probe(err) == 0)
            return backends[i];
    return NULL;
}

/* Called at start with the option's text; the reason that stands in err is the last one's. */
const struct backend_ops *backend_find(const char *name, struct err *err)
{
    char known[128] = "auto";

    if (strcmp(name, "auto") == 0)
        return find_best(err);
    for (int i = 0; backends[i] != NULL; i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i]->probe(err) == 0 ? backends[i] : NULL;
        size_t len = strlen(known);
        snprintf(known + len, sizeof(known) - len, ", %s", backends[i]->name);
    }
    return err_null(err, "backend \"%s\" is not in this build; known are %s", name, known);
}
