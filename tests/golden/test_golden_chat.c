/* test_golden_chat.c - chats rendered as text and as ids, against those that llama.cpp made.
 *
 * Ids are rendered turn by turn, as a conversation keeps them, with the template that the model's
 * own metadata names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/err.h"
#include "model/chat.h"
#include "model/gguf.h"
#include "tests/golden/golden.h"

enum { MESSAGES_MAX = 8 };

struct chat {
    struct bytes roles[MESSAGES_MAX], contents[MESSAGES_MAX];
    int n;
};

static struct chat read_chat(const json_t *line)
{
    struct chat chat = {0};
    const json_t *messages = json_object_get(line, "messages");
    chat.n = (int)json_array_size(messages);
    assert_in_range(chat.n, 1, MESSAGES_MAX);
    for (int i = 0; i < chat.n; i++) {
        const json_t *message = json_array_get(messages, (size_t)i);
        chat.roles[i] = golden_text(message, "role");
        chat.contents[i] = golden_text(message, "content");
    }
    return chat;
}

static void test_chats_have_the_golden_text(void **state)
{
    (void)state;
    char path[GOLDEN_PATH_MAX];
    struct err err;
    if (!golden_find("smollm2-chat.jsonl", path))
        skip();
    const struct chat_template *c = chat_find("smollm2", &err);
    json_t *lines = golden_read_lines(path), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        struct chat chat = read_chat(line);
        struct str text = {0};
        assert_int_equal(chat_render_text(c, chat.roles, chat.contents, chat.n, true, &text, &err),
                         0);
        assert_string_equal(text.data, golden_text(line, "rendered").data);
        str_free(&text);
    }
    assert_int_equal(json_array_size(lines), 7);
    json_decref(lines);
}

static void check_chat(const struct chat_template *c, const struct tokenizer *t, const json_t *line)
{
    struct chat chat = read_chat(line);
    struct chat_state state = {0};
    struct ids ids = {0};
    struct err err;
    for (int i = 0; i < chat.n; i++)
        assert_int_equal(
            chat_render_turn(c, t, &state, chat.roles[i], chat.contents[i], false, &ids, &err), 0);
    assert_int_equal(chat_render_answer(c, t, &state, &ids, &err), 0);
    golden_check_ids(golden_text(line, "rendered").data, &ids, json_object_get(line, "ids"));
    ids_free(&ids);
}

static void test_chats_have_the_golden_ids(void **state)
{
    (void)state;
    char golden[GOLDEN_PATH_MAX], model[GOLDEN_PATH_MAX];
    struct err err;
    struct bytes jinja = {0};
    if (!golden_find("smollm2-chat.jsonl", golden) || !golden_find_model(model))
        skip();
    struct gguf *gguf = gguf_open(model, &err);
    assert_non_null(gguf);
    struct tokenizer *t = tokenizer_load(gguf, &err);
    assert_non_null(t);
    assert_int_equal(gguf_get_string(gguf, "tokenizer.chat_template", &jinja, &err), 1);
    const struct chat_template *c = chat_recognise(jinja, &err);
    assert_non_null(c);
    assert_string_equal(chat_name(c), "smollm2");
    json_t *lines = golden_read_lines(golden), *line;
    size_t i;
    json_array_foreach(lines, i, line) check_chat(c, t, line);
    json_decref(lines);
    tokenizer_free(t);
    gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chats_have_the_golden_text),
        cmocka_unit_test(test_chats_have_the_golden_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
