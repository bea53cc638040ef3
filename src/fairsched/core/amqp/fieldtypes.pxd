"""Types of the fields in AMQP tables: the one table from which every reader, writer and comparison takes them.

A row has the letter by which a type is known, its family, the octets of a value, whether these are signed, and the name
in RabbitMQ's replies. The family says how values are read, written and compared:

    FAMILY_VOID       no value
    FAMILY_BOOL       0 is false
    FAMILY_INTEGER    RabbitMQ accepts any of them as an integer argument; equal by value whatever their widths
    FAMILY_REAL       IEEE 754; equal by value
    FAMILY_DECIMAL    an octet with the number of decimals, and a signed number of 32 bits
    FAMILY_TIMESTAMP  seconds since 1970
    FAMILY_TEXT       RabbitMQ's long string
    FAMILY_OCTETS     bytes; equal to a long string of the same octets
    FAMILY_ARRAY      fields without names
    FAMILY_TABLE      fields with names

Rows that differ only in the letter are one type. A new letter of a family needs a row here and nothing else. A new
family also needs a reader in `fairsched.amqp.fieldtables`, a name in `fairsched.amqp._properties`, and an equality
in `core.broker.exchanges.fields`, unless values of the same octets are equal.

Source: AMQP 0-9-1, section 4.2.5.5, as RabbitMQ's errata have it.
Thread safety: pure functions. Complexity: O(1).
"""

from libc.stdint cimport int8_t, uint8_t

cdef extern from *:
    """
    enum FairschedFieldFamily : uint8_t {
        FAMILY_UNKNOWN, FAMILY_VOID, FAMILY_BOOL, FAMILY_INTEGER, FAMILY_REAL, FAMILY_DECIMAL, FAMILY_TIMESTAMP,
        FAMILY_TEXT, FAMILY_OCTETS, FAMILY_ARRAY, FAMILY_TABLE
    };

    /* Sizes that are no number of octets: no type has this letter; the value follows its length, which takes 4. */
    enum { SIZE_UNKNOWN = -1, SIZE_AHEAD = -2 };

    struct FairschedFieldType {
        uint8_t letter;
        FairschedFieldFamily family;
        int8_t size;
        bool is_signed;
        const char* name;
    };

    static constexpr FairschedFieldType FAIRSCHED_FIELD_TYPES[] = {
        {'V', FAMILY_VOID,      0,          false, "void"},
        {'t', FAMILY_BOOL,      1,          false, "bool"},
        {'b', FAMILY_INTEGER,   1,          true,  "byte"},
        {'B', FAMILY_INTEGER,   1,          false, "unsignedbyte"},
        {'s', FAMILY_INTEGER,   2,          true,  "short"},
        {'U', FAMILY_INTEGER,   2,          true,  "short"},
        {'u', FAMILY_INTEGER,   2,          false, "unsignedshort"},
        {'I', FAMILY_INTEGER,   4,          true,  "signedint"},
        {'i', FAMILY_INTEGER,   4,          false, "unsignedint"},
        {'l', FAMILY_INTEGER,   8,          true,  "long"},
        {'L', FAMILY_INTEGER,   8,          true,  "long"},
        {'f', FAMILY_REAL,      4,          true,  "float"},
        {'d', FAMILY_REAL,      8,          true,  "double"},
        {'D', FAMILY_DECIMAL,   5,          true,  "decimal"},
        {'T', FAMILY_TIMESTAMP, 8,          false, "timestamp"},
        {'S', FAMILY_TEXT,      SIZE_AHEAD, false, "longstr"},
        {'x', FAMILY_OCTETS,    SIZE_AHEAD, false, "binary"},
        {'A', FAMILY_ARRAY,     SIZE_AHEAD, false, "array"},
        {'F', FAMILY_TABLE,     SIZE_AHEAD, false, "table"},
    };

    /* The same rows by their letter, so that a reader needs one load and no comparison. */
    struct FairschedFieldTypesByLetter {
        FairschedFieldType at[256];

        constexpr FairschedFieldTypesByLetter() : at() {
            for (FairschedFieldType& type : at) type = {0, FAMILY_UNKNOWN, SIZE_UNKNOWN, false, "void"};
            for (const FairschedFieldType& type : FAIRSCHED_FIELD_TYPES) at[type.letter] = type;
        }
    };
    static constexpr FairschedFieldTypesByLetter FAIRSCHED_FIELD_TYPES_BY_LETTER;
    """
    enum:
        SIZE_UNKNOWN
        SIZE_AHEAD

    ctypedef uint8_t FieldFamily "FairschedFieldFamily"

    enum:
        FAMILY_UNKNOWN
        FAMILY_VOID
        FAMILY_BOOL
        FAMILY_INTEGER
        FAMILY_REAL
        FAMILY_DECIMAL
        FAMILY_TIMESTAMP
        FAMILY_TEXT
        FAMILY_OCTETS
        FAMILY_ARRAY
        FAMILY_TABLE

    ctypedef struct FieldType "const FairschedFieldType":
        FieldFamily family
        int8_t size            # octets of a value, or SIZE_...
        bint is_signed
        const char* name       # RabbitMQ's

    FieldType* FIELD_TYPES "FAIRSCHED_FIELD_TYPES_BY_LETTER.at"

cdef inline FieldType* type_of(uint8_t letter) noexcept nogil:
    """Return the type with this letter; its family is FAMILY_UNKNOWN if there is none."""
    return &FIELD_TYPES[letter]
