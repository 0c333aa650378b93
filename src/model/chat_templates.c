/* chat_templates.c - the chat templates that are known, as data.
 *
 * A model's metadata carries its template as a Jinja program. Running such programs means an
 * interpreter for text out of a downloaded file, and a rendering that can not be taken apart into
 * turns. Instead the common ones are data here; a program is recognised by words that only it has.
 * Each table was written from the template as its model's authors publish it, in the form that puts
 * the same marks around the same contents. Where forms differ:
 *
 *  - llama-2, mistral: the system text is folded into the first user turn, so it must come first,
 *    and an answer can not follow it directly. Mistral's first releases knew no system text; the
 *    later form is taken.
 *  - llama-3: `tool` is the header `ipython`, as from 3.1 on.
 *  - gemma: no system role, and the assistant is called `model`.
 *  - zephyr, phi-3: BOS comes from the metadata (add_bos_token), not from the template.
 *
 * ChatML with other default system texts than SmolLM2's is rendered without one: a default that the
 * client did not ask for is part of one model's training, not of the format. */
#include "model/chat_templates.h"
#include <stddef.h>

// clang-format off
#define CHATML_ROLES {                                              \
        {"system", "{<|im_start|>}system\n", "{<|im_end|>}\n"},       \
        {"user", "{<|im_start|>}user\n", "{<|im_end|>}\n"},           \
        {"assistant", "{<|im_start|>}assistant\n", "{<|im_end|>}\n"}, \
        {"tool", "{<|im_start|>}tool\n", "{<|im_end|>}\n"},           \
    }
#define LLAMA3_HEADER(role) "{<|start_header_id|>}" role "{<|end_header_id|>}\n\n"

const struct chat_template chat_templates[] = {
    {
        .name = "smollm2",
        .begin = "",
        .roles = CHATML_ROLES,
        .answer = "{<|im_start|>}assistant\n",
        .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        .bos = "",
        .signs = {"<|im_start|>", "You are a helpful AI assistant named SmolLM"},
    },
    {
        .name = "chatml",
        .begin = "",
        .roles = CHATML_ROLES,
        .answer = "{<|im_start|>}assistant\n",
        .bos = "",
        .signs = {"<|im_start|>", "<|im_end|>"},
        .foreign = {"<|im_sep|>"}, /* Phi-4: other marks around the role */
    },
    {
        .name = "llama-3",
        .begin = "{bos}",
        .roles = {
            {"system", LLAMA3_HEADER("system"), "{<|eot_id|>}"},
            {"user", LLAMA3_HEADER("user"), "{<|eot_id|>}"},
            {"assistant", LLAMA3_HEADER("assistant"), "{<|eot_id|>}"},
            {"tool", LLAMA3_HEADER("ipython"), "{<|eot_id|>}"},
        },
        .answer = LLAMA3_HEADER("assistant"),
        .bos = "<|begin_of_text|>",
        .trims = true,
        .signs = {"<|start_header_id|>", "<|eot_id|>"},
    },
    {
        .name = "llama-2",
        .begin = "",
        .roles = {
            {"system", "{bos}[INST] <<SYS>>\n", "\n<</SYS>>\n\n"},
            {"user", "{bos}[INST] ", " [/INST]"},
            {"assistant", " ", " {</s>}"},
        },
        .answer = "",
        .user_after_system = "",
        .bos = "<s>",
        .alternates = true,
        .system_first = true,
        .trims = true,
        .signs = {"[INST]", "<<SYS>>"},
    },
    {
        .name = "mistral",
        .begin = "{bos}",
        .roles = {
            {"system", "{[INST]} ", "\n\n"},
            {"user", "{[INST]} ", " {[/INST]}"},
            {"assistant", " ", "{</s>}"},
        },
        .answer = "",
        .user_after_system = "",
        .bos = "<s>",
        .alternates = true,
        .system_first = true,
        .signs = {"[INST]", "[/INST]"},
        .foreign = {"<<SYS>>", "[SYSTEM_PROMPT]"}, /* Llama 2; Mistral from 2024-11 on */
    },
    {
        .name = "phi-3",
        .begin = "",
        .roles = {
            {"system", "{<|system|>}\n", "{<|end|>}\n"},
            {"user", "{<|user|>}\n", "{<|end|>}\n"},
            {"assistant", "{<|assistant|>}\n", "{<|end|>}\n"},
        },
        .answer = "{<|assistant|>}\n",
        .bos = "<s>",
        .signs = {"<|assistant|>", "<|end|>"},
        .foreign = {"<|start|>", "<|im_start|>"}, /* gpt-oss; ChatML kin */
    },
    {
        .name = "zephyr",
        .begin = "",
        .roles = {
            {"system", "{<|system|>}\n", "{</s>}\n"},
            {"user", "{<|user|>}\n", "{</s>}\n"},
            {"assistant", "{<|assistant|>}\n", "{</s>}\n"},
        },
        .answer = "{<|assistant|>}\n",
        .bos = "<s>",
        .signs = {"<|user|>", "<|assistant|>", "eos_token"},
        .foreign = {"<|end|>", "[gMask]", "<|start_of_role|>"}, /* Phi-3; GLM; Granite */
    },
    {
        .name = "gemma",
        .begin = "{bos}",
        .roles = {
            {"user", "{<start_of_turn>}user\n", "{<end_of_turn>}\n"},
            {"assistant", "{<start_of_turn>}model\n", "{<end_of_turn>}\n"},
        },
        .answer = "{<start_of_turn>}model\n",
        .bos = "<bos>",
        .alternates = true,
        .trims = true,
        .signs = {"<start_of_turn>", "<end_of_turn>"},
    },
    {.name = NULL},
};
// clang-format on
