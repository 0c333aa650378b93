/* password.c - compares a password without telling how much of it was right.
 *
 * The time of memcmp tells the length of the common beginning. Both sides are hashed first, so that
 * neither content nor length of the expected one shows, and the digests are compared in constant
 * time. OpenSSL's libcrypto is used here and nowhere else. */
#include "server/password.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

bool password_matches(struct bytes given, struct bytes expected)
{
    unsigned char a[SHA256_DIGEST_LENGTH], b[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)given.data, given.len, a);
    SHA256((const unsigned char *)expected.data, expected.len, b);
    return CRYPTO_memcmp(a, b, sizeof a) == 0;
}
