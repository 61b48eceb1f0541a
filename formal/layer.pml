/* The protocol of native/producer.cpp, consumer.cpp and transport.cpp: slots, acknowledgements, poison, cancel, death,
 * recovery. Every step is atomic where the code has one store or one compare-and-swap; the memory model is not modelled
 * (tests/native/litmus.cpp and ThreadSanitizer are for that).
 *
 * Sizes: R ranks, S slots, P pieces of a layer, E epochs of a generation. FAULTS: 0 none, 1 cancel, 2 death (and
 * recovery in a second generation), 3 both. MUTANT breaks one thing; spin must then find it.
 */
#ifndef R
#define R 2
#endif
#ifndef S
#define S 2
#endif
#ifndef P
#define P 3
#endif
#ifndef E
#define E 2
#endif
#ifndef FAULTS
#define FAULTS 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define G 2 /* generations */
#define OPEN 1
#define DONE 2
#define CANCELLED 3
#define N(g, x) ((g) * R + (x))     /* per generation and rank */
#define SL(g, s) ((g) * S + (s))    /* per generation and slot */
#define ACK(g, r, s) (((g) * R + (r)) * S + (s))

/* The control region of each generation. */
byte epoch_now[G];             /* active_epoch */
byte verdict[G];            /* of the active epoch */
bool poisoned[G];
byte ready_seq[G * S];      /* ready.sequence, epoch, number */
byte ready_epoch[G * S];
byte ready_number[G * S];
byte ack[G * R * S];
byte join_epoch[G * R];
byte done_epoch[G * R];     /* consumer_done_epoch */
byte returned[G * R];       /* wait_returned_epoch */
byte producer_done[G];

/* Not shared in the code: what the properties speak of. */
byte slot_epoch[G * S];     /* what the slot's bytes are */
byte slot_piece[G * S];
bool alive[G * R] = true;     /* false: the process ends at its next look; what it does before is a zombie's */
bool running[G * R];        /* its consumer */
byte next_piece[G * R];     /* the piece that a rank must take next */
byte outcome[G * (E + 1)];  /* what the first rank made of the epoch */
byte ended[R];              /* calls that came back, per rank: proves that waits end */

#if MUTANT == 1
#define UNWATCHED(i) ((i) == R - 1) /* the last rank's acknowledgement is not waited for */
#else
#define UNWATCHED(i) false
#endif

#define broken(g) (poisoned[g])
#define cancelled(g, e) (epoch_now[g] == (e) && verdict[g] == CANCELLED)

inline note(g, e, what) {
  assert(outcome[(g) * (E + 1) + (e)] == 0 || outcome[(g) * (E + 1) + (e)] == what); /* done or given up: the same for all */
  outcome[(g) * (E + 1) + (e)] = what
}

/* A rank's consumer for one epoch of one generation; runs inside the rank's process as a coroutine of its caller would
 * hide interleavings, so it is a process of its own. */
proctype Consumer(byte g; byte r; byte e) {
  byte piece = 0, s = 0, seq = 0;
  bool flying = false;
  byte fly_piece, fly_slot, fly_seq;
  /* pass_over: what was published for a layer that was given up */
#if MUTANT != 3
  s = 0;
  do
  :: s < S ->
     atomic {
       if
       :: ready_epoch[SL(g, s)] != 0 && ready_epoch[SL(g, s)] < e -> ack[ACK(g, r, s)] = ready_seq[SL(g, s)]
       :: else
       fi;
       s++
     }
  :: else -> break
  od;
#endif
  next_piece[N(g, r)] = 0;
  do
  :: !alive[N(g, r)] -> goto gone
  :: broken(g) || cancelled(g, e) -> break
  :: piece == P && !flying -> break
  :: flying ->              /* the device has finished */
     atomic {
       assert(slot_epoch[SL(g, fly_slot)] == e && slot_piece[SL(g, fly_slot)] == fly_piece); /* not overwritten meanwhile */
       flying = false
     };
     if
     :: alive[N(g, r)] && piece == P -> done_epoch[N(g, r)] = e
     :: else
     fi;
     if
     :: alive[N(g, r)] -> ack[ACK(g, r, fly_slot)] = fly_seq
     :: else
     fi
  :: (piece < P && !flying && ready_epoch[SL(g, piece % S)] == e && ready_number[SL(g, piece % S)] == piece && ready_seq[SL(g, piece % S)] > ack[ACK(g, r, piece % S)]) ->
     atomic {
       s = piece % S;
       assert(slot_epoch[SL(g, s)] == e);              /* of this epoch */
       assert(slot_piece[SL(g, s)] == piece);          /* these are its bytes */
       assert(next_piece[N(g, r)] == piece);           /* in order, once */
       next_piece[N(g, r)] = piece + 1;
       fly_piece = piece; fly_slot = s; fly_seq = ready_seq[SL(g, s)];
       flying = true;
       piece++
     };
#if MUTANT == 2
     ack[ACK(g, r, fly_slot)] = fly_seq                /* before the copy has finished */
#endif
  od;
gone:
  running[N(g, r)] = false
}

/* One rank's caller: the loop of join, run (rank 0), wait. */
proctype Rank(byte g; byte r) {
  byte e = 1, piece = 0, s = 0, i = 0, seq = 0;
again:
  seq = 0;
  do
  :: e > E -> break
  :: else ->
     if
     :: !alive[N(g, r)] -> goto dead
     :: else
     fi;
     /* join */
     if
     :: r == 0 ->
        i = 0;
        do                                             /* wait_all_returned */
        :: i < R && (returned[N(g, i)] >= e - 1 || broken(g)) -> i++
        :: i == R -> break
        :: !alive[N(g, r)] -> goto dead
        od;
        if
        :: broken(g) -> goto failed
        :: else
        fi;
        atomic { verdict[g] = OPEN; epoch_now[g] = e }
     :: else ->
        if
        :: epoch_now[g] >= e || broken(g)
        :: !alive[N(g, r)] -> goto dead
        fi;
        if
        :: broken(g) -> goto failed
        :: else
        fi
     fi;
     running[N(g, r)] = true;
     run Consumer(g, r, e);
     join_epoch[N(g, r)] = e;
     /* run */
     if
     :: r == 0 ->
        piece = 0;
        do
        :: !alive[N(g, 0)] -> goto dead
        :: broken(g) || cancelled(g, e) -> break
        :: piece == P -> break
        :: piece < P ->
           s = piece % S;
           i = 0;
           do                                          /* wait_free */
           :: i < R && (ack[ACK(g, i, s)] >= ready_seq[SL(g, s)] || broken(g) || cancelled(g, e) || UNWATCHED(i)) -> i++
           :: i == R -> break
           :: !alive[N(g, 0)] -> goto dead
           od;
           if
           :: broken(g) || cancelled(g, e) -> break
           :: else
           fi;
           atomic { slot_epoch[SL(g, s)] = e; slot_piece[SL(g, s)] = piece };   /* the writer */
           if
           :: !alive[N(g, 0)] -> goto dead
           :: else
           fi;
           ready_epoch[SL(g, s)] = e;
           ready_number[SL(g, s)] = piece;
           atomic { seq++; ready_seq[SL(g, s)] = seq };
           piece++
        od;
        if
        :: !(broken(g) || cancelled(g, e)) ->
           s = 0;
           do
           :: s < S ->
              i = 0;
              do
              :: i < R && (ack[ACK(g, i, s)] >= ready_seq[SL(g, s)] || broken(g) || cancelled(g, e)) -> i++
              :: i == R -> break
              :: !alive[N(g, 0)] -> goto dead
              od;
              s++
           :: else -> break
           od
        :: else
        fi;
        if
        :: broken(g) -> goto failed
        :: else
        fi;
#if MUTANT == 4
        if
        :: verdict[g] == OPEN ->                       /* looked, then stored: no compare-and-swap */
           skip;
           verdict[g] = DONE;
           producer_done[g] = e
        :: else
        fi
#else
        atomic {
          if
          :: verdict[g] == OPEN -> verdict[g] = DONE
          :: else
          fi
        };
        if
        :: verdict[g] == DONE && alive[N(g, 0)] -> producer_done[g] = e
        :: else
        fi
#endif
     :: else
     fi;
     /* wait */
     if
     :: done_epoch[N(g, r)] >= e && producer_done[g] >= e -> note(g, e, DONE)
     :: cancelled(g, e) && !(done_epoch[N(g, r)] >= e && producer_done[g] >= e) -> note(g, e, CANCELLED)
     :: broken(g) && !cancelled(g, e) && !(done_epoch[N(g, r)] >= e && producer_done[g] >= e) ->
        assert(producer_done[g] < e);                  /* a complete layer stays complete */
        goto failed
     :: !alive[N(g, r)] -> goto dead
     fi;
     ended[r] = ended[r] + 1;
     if
     :: !running[N(g, r)] || !alive[N(g, r)]           /* nothing of the layer moves any more */
     fi;
     returned[N(g, r)] = e;
     e++
  od;
  goto out;
failed:
  ended[r] = ended[r] + 1;
  if
  :: !running[N(g, r)] || !alive[N(g, r)]              /* close: the consumer's thread has ended */
  fi;
  /* recover: a new region (or, as a mutant, the same one, wiped) */
  if
  :: g + 1 < G && alive[N(g, r)] ->
     g++;                                              /* a new region: a zombie writes into the old one */
     e = 1;
     goto again
  :: else
  fi;
  goto out;
dead:
  skip;
out:
  skip
}

/* What goes wrong, once, at any moment. */
proctype World() {
  byte who = 0;
  if
  :: (FAULTS == 1 || FAULTS == 3) ->
     do
     :: verdict[0] == OPEN -> atomic {
          if
          :: verdict[0] == OPEN -> verdict[0] = CANCELLED
          :: else
          fi
        }; break
     :: break
     od
  :: else
  fi;
  if
  :: FAULTS >= 2 ->
     select(who : 0 .. R - 1);
     if
     :: alive[N(0, who)] = false;
        poisoned[0] = true;                            /* the kernel tells the others; the first to hear poisons */
        run Rank(1, who)                               /* a new process in its place, in the new generation */
     :: skip
     fi
  :: else
  fi
}

init {
  atomic {
    byte r = 0;
    do
    :: r < R -> run Rank(0, r); r++
    :: else -> break
    od;
    run World()
  }
}
