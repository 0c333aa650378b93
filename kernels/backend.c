/* backend.c - the backends of this build, and how one is found by name. */
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

/* Best first: "auto" takes the first that this machine can run. ref always can. */
const struct backend_ops *const backends[] = {
    &cpu_backend_ops,
    &ref_backend_ops,
    NULL,
};

const char *const kv_type_names[] = {
    [KV_AUTO] = "auto", [KV_F32] = "f32",    [KV_BF16] = "bf16",
    [KV_INT8] = "int8", [KV_N_TYPES] = NULL,
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

int backend_kv_type(const struct backend_ops *ops, enum kv_type wanted, enum kv_type *type,
                    struct err *err)
{
    char has[64] = "";
    for (int i = 0; ops->kv_types[i] != KV_AUTO; i++) {
        if (wanted == ops->kv_types[i] || wanted == KV_AUTO) {
            *type = ops->kv_types[i];
            return 0;
        }
        size_t len = strlen(has);
        snprintf(has + len, sizeof(has) - len, "%s%s", i > 0 ? ", " : "",
                 kv_type_names[ops->kv_types[i]]);
    }
    return err_set(err, "%s: K/V of type %s is not possible; it has %s", ops->name,
                   kv_type_names[wanted], has);
}
